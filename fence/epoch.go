package fence

// InEpoch is lease as one of an engine that came after others, whose tokens may be smaller than
// theirs: on Redis they begin at 1.8e18, on a new etcd at some thousands.
//
// Number the engines from 0, which is what a lease has that is shown as it is. Once a guard has
// admitted a lease of an epoch, it refuses all of former ones under the same name, whatever
// their tokens: so a holder that comes late from the former engine is shut out. Until then it is
// not, because the guard cannot know. All programs that show leases of the new engine must show
// them in its epoch; one that forgets is refused.
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
