package fence

// InEpoch returns lease as a lease of a later engine. Its tokens may be smaller than the former
// engine's: on Redis they begin at 1.8e18, on a new etcd at some thousands.
//
// Number the engines from 0, the epoch of a plain lease. Once a guard has admitted a lease of an
// epoch, it refuses leases of earlier ones under the same name, whatever their tokens. This
// shuts out late holders of the former engine. Until then it cannot, because the guard cannot
// know of the change. All programs that show leases of the new engine must use its epoch; a
// program that does not is refused.
func InEpoch(l Lease, epoch uint32) Lease { return inEpoch{l, epoch} }

type inEpoch struct {
	Lease
	epoch uint32
}

func epochOf(l Lease) int64 {
	if l, ok := l.(inEpoch); ok {
		return int64(l.epoch)
	}
	return 0
}
