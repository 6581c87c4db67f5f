// Command image writes an OCI image of one program for several platforms, without a base image. The
// output is a tar of an image layout, which podman, skopeo, crane and docker load can read. The
// same input gives the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path"
	"strings"
	"time"
)

// Media types of the OCI image specification 1.1.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// program is the path of the binary in the image.
const program = "usr/bin/leasehold"

// nobody is the default user of the program.
const nobody = "65534:65534"

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Manifests     []descriptor      `json:"manifests"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type config struct {
	platform
	Created time.Time `json:"created"`
	Config  struct {
		User       string            `json:"User"`
		Entrypoint []string          `json:"Entrypoint"`
		Labels     map[string]string `json:"Labels"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// An image is a layout in progress.
type image struct {
	out     *tar.Writer
	created time.Time
	version string
	has     map[string]bool // digests of the blobs written so far
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("image: ")
	file := flag.String("o", "", "write the image to `FILE`")
	version := flag.String("version", "", "of the program")
	created := flag.Int64("created", 0, "the time in it, in `SECONDS` since 1970")
	flag.Parse()
	if err := write(*file, *version, time.Unix(*created, 0).UTC(), flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// write writes the image. Each of binaries has the form OS/ARCHITECTURE=FILE.
func write(file, version string, created time.Time, binaries []string) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	im := &image{out: tar.NewWriter(out), created: created, version: version, has: map[string]bool{}}
	var all []descriptor
	for _, b := range binaries {
		on, binary, _ := strings.Cut(b, "=")
		system, architecture, _ := strings.Cut(on, "/")
		d, err := im.addPlatform(platform{architecture, system}, binary)
		if err != nil {
			return err
		}
		all = append(all, d)
	}
	if err := im.finish(all); err != nil {
		return err
	}
	return out.Close()
}

func (im *image) addPlatform(p platform, binary string) (descriptor, error) {
	layer, err := im.layer(binary)
	if err != nil {
		return descriptor{}, err
	}
	var packed bytes.Buffer
	gz := gzip.NewWriter(&packed)
	gz.Write(layer) // on a buffer neither this nor Close fails
	gz.Close()
	c := config{platform: p, Created: im.created}
	c.Config.User = nobody
	c.Config.Entrypoint = []string{"/" + program}
	c.Config.Labels = im.labels()
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{digest(layer)}
	m := manifest{SchemaVersion: 2, MediaType: manifestType}
	if m.Config, err = im.addJSON(configType, c); err != nil {
		return descriptor{}, err
	}
	l, err := im.add(layerType, packed.Bytes())
	if err != nil {
		return descriptor{}, err
	}
	m.Layers = []descriptor{l}
	d, err := im.addJSON(manifestType, m)
	d.Platform = &p
	return d, err
}

func (im *image) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    path.Base(program),
		"org.opencontainers.image.version":  im.version,
		"org.opencontainers.image.licenses": "MIT",
		"org.opencontainers.image.source":   "https://github.com/leasehold-go/leasehold",
	}
}

// layer returns a tar with the program and a folder for temporary files.
func (im *image) layer(binary string) ([]byte, error) {
	text, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777},
		{Typeflag: tar.TypeDir, Name: "usr/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "usr/bin/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: program, Mode: 0o755, Size: int64(len(text))},
	} {
		h.ModTime = im.created
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	err = w.Close()
	return b.Bytes(), err
}

func (im *image) finish(all []descriptor) error {
	platforms := index{SchemaVersion: 2, MediaType: indexType, Manifests: all, Annotations: im.labels()}
	d, err := im.addJSON(indexType, platforms)
	if err != nil {
		return err
	}
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": im.version}
	top, err := json.Marshal(index{SchemaVersion: 2, MediaType: indexType, Manifests: []descriptor{d}})
	if err != nil {
		return err
	}
	if err := im.file("index.json", top); err != nil {
		return err
	}
	if err := im.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	return im.out.Close()
}

func (im *image) addJSON(mediaType string, v any) (descriptor, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return im.add(mediaType, text)
}

func (im *image) add(mediaType string, blob []byte) (descriptor, error) {
	d := descriptor{MediaType: mediaType, Digest: digest(blob), Size: len(blob)}
	if im.has[d.Digest] {
		return d, nil
	}
	im.has[d.Digest] = true
	return d, im.file("blobs/"+strings.ReplaceAll(d.Digest, ":", "/"), blob)
}

func (im *image) file(name string, text []byte) error {
	h := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text)), ModTime: im.created}
	if err := im.out.WriteHeader(&h); err != nil {
		return err
	}
	_, err := im.out.Write(text)
	return err
}

func digest(blob []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(blob)) }
