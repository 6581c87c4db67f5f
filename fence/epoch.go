package fence

// InEpoch returns l as a lease of an engine that replaced others. The new engine's tokens may be
// smaller than theirs: on Redis they begin at 1.8e18, on a new etcd at some thousands.
//
// Number the engines from 0, the epoch of a lease without InEpoch. Once a guard has admitted a
// lease of an epoch, it refuses all of earlier epochs under the same name, whatever their tokens.
// Until then it admits late holders of the former engine, because it cannot know better. All
// programs must give the leases of the new engine its epoch; those that forget are refused.
func InEpoch(l Lease, epoch uint32) Lease { return inEpoch{l, epoch} }

// inEpoch is a Lease with an epoch.
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
