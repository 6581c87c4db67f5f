package zklock

import "github.com/leasehold-go/leasehold/internal/queue"

// The rule of the queue, for nodes in order.

func (n node) claim() queue.Claim { return queue.Claim{Mode: n.mode, Limit: n.limit} }

// holding returns how many of nodes hold.
func holding(nodes []node) int { return queue.Holding(nodes, node.claim) }

// blockers returns those before nodes[i] of which at least one must leave before nodes[i]
// can hold; none if it holds.
func blockers(nodes []node, i int) []node {
	var in []node
	for _, j := range queue.Blockers(nodes, i, node.claim) {
		in = append(in, nodes[j])
	}
	return in
}

// isNext reports whether nodes[i], which waits, holds as soon as the one that it waits for
// is gone, whoever else leaves.
func isNext(nodes []node, i int) bool { return queue.IsNext(nodes, i, node.claim) }
