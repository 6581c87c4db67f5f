package described

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/internal/wire"
	"github.com/leasehold-go/leasehold/serve"
	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/errors"
	"github.com/pb33f/libopenapi-validator/schema_validation"
	"github.com/pb33f/libopenapi/datamodel/high/base"
)

// A Judge checks exchanges against the description.
type Judge struct {
	t      testing.TB
	valid  validator.Validator
	schema schema_validation.SchemaValidator
	event  *base.Schema
	calls  map[string]map[string]bool // described statuses, by method and path
	seen   map[string]bool            // method, path and status of exchanges
	wrong  map[string]int
	judged int
}

// New reads the description that the service serves.
func New(t testing.TB) *Judge {
	t.Helper()
	j, err := read(serve.Description())
	if err != nil {
		t.Fatal(err)
	}
	j.t = t
	return j
}

func read(text []byte) (*Judge, error) {
	doc, err := libopenapi.NewDocument(text)
	if err != nil {
		return nil, fmt.Errorf("read the description: %w", err)
	}
	model, err := doc.BuildV3Model()
	if err != nil {
		return nil, fmt.Errorf("read the description: %w", err)
	}
	valid, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		return nil, fmt.Errorf("read the description: %v", errs)
	}
	if ok, errs := valid.ValidateDocument(); !ok {
		return nil, fmt.Errorf("the description is no OpenAPI: %s", text3(errs))
	}
	j := &Judge{
		valid: valid, schema: schema_validation.NewSchemaValidator(),
		event: model.Model.Components.Schemas.GetOrZero("Event").Schema(),
		calls: make(map[string]map[string]bool), seen: make(map[string]bool), wrong: make(map[string]int),
	}
	for path, item := range model.Model.Paths.PathItems.FromOldest() {
		for method, op := range item.GetOperations().FromOldest() {
			statuses := make(map[string]bool)
			for status := range op.Responses.Codes.FromOldest() {
				statuses[status] = true
			}
			j.calls[strings.ToUpper(method)+" "+path] = statuses
		}
	}
	return j, nil
}

// Report fails the test if an exchange differed from the description.
func (j *Judge) Report() {
	j.t.Helper()
	for what, times := range j.wrong {
		j.t.Errorf("not as openapi.json describes it, %d times: %s", times, what)
	}
	j.t.Logf("%d calls and answers are as openapi.json describes them", j.judged)
}

// Unseen returns the described answers that no exchange had.
func (j *Judge) Unseen() (all []string) {
	for call, statuses := range j.calls {
		for status := range statuses {
			if what := call + " " + status; !j.seen[what] {
				all = append(all, what)
			}
		}
	}
	slices.Sort(all)
	return all
}

// undescribed reports whether a path is not for programs, like the console and the metrics.
func undescribed(path string) bool {
	return path == "/" || path == "/metrics" || strings.HasSuffix(path, ".js") || strings.HasSuffix(path, ".css") || path == "/favicon.ico"
}

// judge checks one exchange. Every answer must be as described, and a call that does not match the
// description must be refused.
func (j *Judge) judge(e *exchange) {
	what := fmt.Sprintf("%s %s %d", e.asked.Method, e.asked.URL.Path, e.answered.StatusCode)
	_, known := j.calls[e.asked.Method+" "+e.asked.URL.Path]
	switch {
	case undescribed(e.asked.URL.Path):
		return
	case !known && (e.answered.StatusCode == http.StatusNotFound || e.answered.StatusCode == http.StatusMethodNotAllowed):
		return
	}
	j.judged++
	j.seen[what] = true
	e.asked.Body, e.asked.ContentLength = io.NopCloser(bytes.NewReader(e.body)), int64(len(e.body))
	refused := slices.Contains([]int{400, 401, 403, 413, 415, 429}, e.answered.StatusCode)
	if ok, errs := j.valid.ValidateHttpRequestSync(e.asked); !ok && !refused {
		j.note("%s: the call is none: %s\n%.300s", what, text3(errs), e.body)
	}
	if e.isStream() {
		j.events(what, string(e.answer))
		return
	}
	if e.answered.Header.Get("Content-Encoding") == "gzip" {
		if err := e.unzip(); err != nil {
			j.note("%s: %v", what, err)
			return
		}
	}
	e.answered.Body = io.NopCloser(bytes.NewReader(e.answer))
	if ok, errs := j.valid.ValidateHttpResponse(e.asked, e.answered); !ok {
		j.note("%s: %s\n%.300s", what, text3(errs), e.answer)
	}
}

// unzip replaces a compressed body by its content.
func (e *exchange) unzip() error {
	z, err := gzip.NewReader(bytes.NewReader(e.answer))
	if err != nil {
		return err
	}
	e.answer, err = io.ReadAll(z)
	return err
}

var kinds = append([]string{wire.EventOpen, wire.EventMissed}, wire.EventKinds...)

// events checks the events of a stream, except the last one, which may be cut off.
func (j *Judge) events(what, stream string) {
	parts := strings.Split(stream, "\n\n")
	for _, part := range parts[:len(parts)-1] {
		if strings.HasPrefix(part, ":") {
			continue
		}
		kind, data, ok := strings.Cut(strings.TrimPrefix(part, "event: "), "\ndata: ")
		if !ok || !slices.Contains(kinds, kind) || !json.Valid([]byte(data)) {
			j.note("%s: %q is no event", what, part)
			continue
		}
		if ok, errs := j.schema.ValidateSchemaStringWithVersion(j.event, data, 3.1); !ok {
			j.note("%s: the event %s: %s\n%.300s", what, kind, text3(errs), data)
		}
	}
}

func (j *Judge) note(format string, args ...any) { j.wrong[fmt.Sprintf(format, args...)]++ }

// text3 returns the texts of the first errors.
func text3(errs []*errors.ValidationError) string {
	var all []string
	for _, err := range errs[:min(3, len(errs))] {
		text := err.Message + ": " + err.Reason
		for _, s := range err.SchemaValidationErrors {
			text += ": " + s.Reason
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}
