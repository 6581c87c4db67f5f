package serve

import (
	"net/http"
	"time"

	"github.com/leasehold-go/leasehold/internal/wire"
)

func (s *Server) me(w http.ResponseWriter, _ *http.Request) {
	client := w.(*visit).client
	id := wire.Identity{
		Client: client.Name, By: client.By, Rights: []wire.RightsRule{}, Version: s.opts.Version,
		Engine: s.driver.Features().Engine, Instance: instanceName(), Uptime: wire.Millis(time.Since(s.began)),
		Reserves: s.reserves() == nil, Removes: true,
	}
	for _, rule := range client.Rules {
		one := wire.RightsRule{Prefix: rule.Prefix, Rights: []string{}}
		for _, right := range rule.Rights {
			one.Rights = append(one.Rights, string(right))
		}
		id.Rights = append(id.Rights, one)
	}
	s.answer(w, http.StatusOK, id)
}
