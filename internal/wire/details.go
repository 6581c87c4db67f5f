package wire

// Details are who holds or waits, as far as the note says. All are optional.
type Details struct {
	Host    string            `json:"host,omitempty"`
	User    string            `json:"user,omitempty"`
	PID     int               `json:"pid,omitempty"`
	Program string            `json:"program,omitempty"`
	Started string            `json:"started,omitempty"`
	Link    string            `json:"link,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Text    string            `json:"text,omitempty"`
	Kind    string            `json:"kind,omitempty"`
}
