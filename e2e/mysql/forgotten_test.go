package mysql

import (
	"testing"

	"github.com/leasehold-go/leasehold/e2e/databases"
	"github.com/leasehold-go/leasehold/internal/servers"
)

func TestMySQLForgottenConnections(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		name := servers.StartProxy(t, start(t).Addr())
		databases.ForgottenConnections(t, "mysql://root@"+name.Addr()+"/locks", name)
	})
}

func TestMySQLReleaseAnswerLost(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		addr := start(t).Addr()
		name := servers.StartProxy(t, addr)
		databases.ReleaseAnswerLost(t, "mysql://root@"+name.Addr()+"/locks", "mysql://root@"+addr+"/locks", name)
	})
}

func TestMySQLPoolIsKept(t *testing.T) {
	onEach(t, func(t *testing.T, start starter) {
		through := servers.StartProxy(t, start(t).Addr())
		databases.PoolIsKept(t, "mysql://root@"+through.Addr()+"/locks", through)
	})
}
