package serve

// A Call is a call that is over, as [Options].Trace gets it.
type Call struct {
	Name    string // such as "acquire"
	Client  string // who called; "": nobody who is known
	Lock    string // its name; "": the call is about none
	Token   string // of the lease; "": none was granted
	Outcome string // such as "granted", "busy" or "unknown"; "": the call shows something
	Code    string // tells refusals apart
	Engine  string // of the store, such as "redis"
	Status  int    // of HTTP; 0: the caller went before there was one
}

// traced returns what a tracer gets about the visit.
func (s *Server) traced(v *visit) Call {
	return Call{
		Name: v.Call, Client: v.Client, Lock: v.Name, Token: v.Token, Outcome: v.Outcome, Code: v.Code,
		Engine: s.driver.Features().Engine, Status: v.status,
	}
}
