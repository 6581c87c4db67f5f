package memcachelock

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// defaultPort is memcached's port.
const defaultPort = "11211"

// normal returns the addresses with their ports, in lower case. Its errors do not repeat an invalid
// address, which may be a misplaced password.
func normal(addresses []string) ([]string, error) {
	var all []string
	for i, a := range addresses {
		host, port, err := net.SplitHostPort(a)
		if err != nil { // usually the port is missing
			host, port, err = net.SplitHostPort(a + ":" + defaultPort)
		}
		if err != nil || host == "" || strings.ContainsAny(host, "/@ ") {
			return nil, fmt.Errorf("memcachelock: address %d is not HOST or HOST:PORT", i+1)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("memcachelock: the port of address %d is not a number from 1 to 65535", i+1)
		}
		address := net.JoinHostPort(strings.ToLower(host), port)
		if same := slices.Index(all, address); same >= 0 {
			return nil, fmt.Errorf("memcachelock: addresses %d and %d are the same server", same+1, i+1)
		}
		all = append(all, address)
	}
	if len(all) == 0 {
		return nil, errors.New("memcachelock: no server is named")
	}
	return all, nil
}

// pick returns the server that key belongs to: the one with the highest hash of both. The order of
// servers does not matter. A server that is added takes over its share of the keys, and no other
// key moves. All clients must agree, so this must never change.
func pick(servers []*server, key string) *server {
	if len(servers) == 1 {
		return servers[0]
	}
	return slices.MaxFunc(servers, func(a, b *server) int { return cmp.Compare(a.rank(key), b.rank(key)) })
}

func (s *server) rank(key string) uint64 {
	sum := sha256.Sum256([]byte(s.address + "\x00" + key))
	return binary.BigEndian.Uint64(sum[:])
}
