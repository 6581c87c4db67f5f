package caslock

// Waiting is how many waiters of a resource the driver remembers.
func (d *Driver) Waiting(resource string) int {
	s := d.resource(resource)
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}
