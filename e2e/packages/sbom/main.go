// Command sbom writes what a Go program was built from, according to the program itself, as
// CycloneDX 1.6. The same program gives the same bytes.
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"log"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

type bom struct {
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	URL     string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("sbom: ")
	file := flag.String("o", "", "write to `FILE`")
	version := flag.String("version", "", "of the program, and of the modules of its own tree")
	created := flag.Int64("created", 0, "the time in it, in `SECONDS` since 1970")
	flag.Parse()
	info, err := buildinfo.ReadFile(flag.Arg(0))
	if err != nil {
		log.Fatal(err)
	}
	text, err := json.MarshalIndent(list(info, *version, time.Unix(*created, 0)), "", "  ")
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(*file, append(text, '\n'), 0o644); err != nil {
		log.Fatal(err)
	}
}

func list(info *debug.BuildInfo, version string, created time.Time) bom {
	main := module(&info.Main, version)
	main.Type = "application"
	b := bom{
		Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata:   metadata{created.UTC().Format(time.RFC3339), main},
		Components: []component{library("std", strings.TrimPrefix(info.GoVersion, "go"))},
	}
	for _, m := range info.Deps {
		if m.Replace != nil && m.Replace.Version != "" {
			m = m.Replace
		}
		b.Components = append(b.Components, module(m, version))
	}
	return b
}

// module returns the component for m. A module of the built tree gets version.
func module(m *debug.Module, version string) component {
	if m.Sum == "" {
		return library(m.Path, version)
	}
	c := library(m.Path, m.Version)
	// A sum in go.sum, "h1:" and base64, is the SHA-256 of the module's list of files.
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil {
		c.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum)}}
	}
	return c
}

func library(path, version string) component {
	url := "pkg:golang/" + path + "@" + version
	return component{Type: "library", Ref: url, Name: path, Version: version, URL: url}
}
