// Package slotkeeper acquires slots and locks of Consul through the slotkeeper agent beside this program.
//
//	client, err := slotkeeper.New("unix:/run/slotkeeper/control.sock")
//	...
//	lease, err := client.Acquire(ctx, "licences", slotkeeper.Wait(30*time.Second))
//	...
//	defer lease.Release()
//	work(lease.Context()) // cancelled when the slot is lost
//
// A [Lease] is renewed in the background until [Lease.Release]. It expires by a clock that continues while the machine is
// suspended, counted from before the last answered request was sent. [Lease.Context] is cancelled at the latest when the
// lease expires, also if the agent was killed or does not answer.
package slotkeeper
