package slotkeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"
)

const (
	// renewals is the number of renewals within the time of a lease, so that two may fail.
	renewals = 3
	// retryInterval is the longest time from a failed renewal to the next one.
	retryInterval = time.Second
	// minInterval is the shortest time of a renewal, and between two.
	minInterval = 100 * time.Millisecond
	// expiryMargin is how much earlier a lease ends here, so that its loss is told in time.
	expiryMargin = 100 * time.Millisecond
	// maxLease is longer than any session's TTL.
	maxLease = 48 * time.Hour
	// maxSleep is how long to sleep at most. Timers do not count the time that the machine is suspended: after this time, the
	// lease's clock is read again.
	maxSleep = time.Second
)

// errNotRenewed is why a lease expired whose program was paused.
var errNotRenewed = errors.New("it was not renewed in time")

// Kind is the kind of a lease.
type Kind string

const (
	// Semaphore is a semaphore, with a number of slots.
	Semaphore Kind = "semaphore"
	// Lock is a single-key lock.
	Lock Kind = "lock"
)

// Info is what was granted.
type Info struct {
	// ID is the lease's id at its agent.
	ID string `json:"lease"`
	// Kind and Name are those of the agent's configuration.
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	// Prefix is a semaphore's prefix, and Key is a lock's key, in Consul.
	Prefix string `json:"prefix"`
	Key    string `json:"key"`
	// Session is the lease's own Consul session.
	Session string `json:"session"`
	// FencingToken increases from grant to grant, so that a resource can reject a late write.
	FencingToken uint64 `json:"fencing_token"`
	// LockIndex is Consul's LockIndex of a lock. It is nil for a semaphore.
	LockIndex *uint64 `json:"lock_index"`
	// SlotIndexes are indexes that no other holder has at the same time.
	SlotIndexes []int `json:"slot_indexes"`
}

// grant is an answer with a lease.
type grant struct {
	Info
	// expiresIn is the time from the answer.
	expiresIn time.Duration
	// draining tells that the agent ends.
	draining bool
}

// UnmarshalJSON fails if the content is no lease.
func (g *grant) UnmarshalJSON(content []byte) error {
	var answer struct {
		Info
		// In place of Info's: one that is missing is not 0.
		FencingToken     *uint64  `json:"fencing_token"`
		ExpiresInSeconds *float64 `json:"expires_in_seconds"`
		Draining         bool     `json:"draining"`
	}
	if err := json.Unmarshal(content, &answer); err != nil {
		return err
	}
	if answer.ID == "" || len(answer.SlotIndexes) == 0 || answer.FencingToken == nil || answer.ExpiresInSeconds == nil ||
		*answer.ExpiresInSeconds < 0 {
		return errors.New("it is no lease")
	}
	g.Info = answer.Info
	g.FencingToken = *answer.FencingToken
	g.draining = answer.Draining
	g.expiresIn = time.Duration(min(*answer.ExpiresInSeconds, maxLease.Seconds()) * float64(time.Second))
	return nil
}

// Lease is a slot or a lock that this program holds, and that is renewed in the background.
type Lease struct {
	Info

	client  *Client
	context context.Context
	end     context.CancelCauseFunc
	// ended is closed when the lease is lost or released.
	ended     chan struct{}
	releasing sync.Once

	guard sync.Mutex
	// expires is on the clock of now.
	expires time.Duration
	// reason is why the lease has ended, or nil.
	reason error
	// failure is that of the last renewal, or nil.
	failure error
	// draining is whether the agent has told that it ends.
	draining bool
}

func newLease(parent context.Context, client *Client, granted grant, sent time.Duration) *Lease {
	ctx, end := context.WithCancelCause(parent)
	lease := &Lease{Info: granted.Info, client: client, context: ctx, end: end, ended: make(chan struct{})}
	lease.expires = sent + granted.expiresIn - expiryMargin
	return lease
}

// Context is cancelled when the lease is lost ([context.Cause] is then an [ErrLost]), when it is released ([ErrReleased]), and
// with the context of [Client.Acquire]. The last one does not end the lease.
func (l *Lease) Context() context.Context {
	return l.context
}

// Check returns nil while the slot is certainly held, else an [ErrLost] or [ErrReleased]. Unlike [Lease.Context] it is exact to
// the instant, also after this program was paused. Call it before each step that must not run without the slot.
func (l *Lease) Check() error {
	l.guard.Lock()
	defer l.guard.Unlock()
	if l.reason == nil && l.expires <= now() {
		why := l.failure
		if why == nil {
			why = errNotRenewed
		}
		l.loseLocked(fmt.Errorf("expired: %w", why))
	}
	return l.reason
}

// Remaining is for how long the slot is certainly held.
func (l *Lease) Remaining() time.Duration {
	l.guard.Lock()
	defer l.guard.Unlock()
	if l.reason != nil {
		return 0
	}
	return max(0, l.expires-now())
}

// Draining reports whether the agent has told that it ends. The lease lasts until it expires, and cannot be renewed once the
// agent has ended.
func (l *Lease) Draining() bool {
	l.guard.Lock()
	defer l.guard.Unlock()
	return l.draining
}

// Show returns the lease as the agent knows it, and when it expires unless it is renewed. This does not renew it.
func (l *Lease) Show(ctx context.Context) (Info, time.Duration, error) {
	shown, err := l.ask(ctx, http.MethodGet, "", RequestTimeout)
	return shown.Info, shown.expiresIn, err
}

// Release releases the slot, also a lost one: the agent then hands it off earlier. It takes at most [RequestTimeout]. If no
// answer comes in that time, the agent releases the lease when it is not renewed. Further calls do nothing.
func (l *Lease) Release() {
	l.releasing.Do(func() {
		l.guard.Lock()
		l.endLocked(ErrReleased)
		l.guard.Unlock()
		l.client.release(l.ID)
	})
}

// start renews the lease in the background, and watches when it expires.
func (l *Lease) start() {
	go func() {
		for l.Check() == nil {
			l.sleep(l.Remaining())
		}
	}()
	// A renewal ends with the lease, and not with its context: the work may take a while to stop.
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-l.ended
		cancel()
	}()
	go func() {
		interval := l.Remaining() / renewals
		for l.sleepUntil(now() + interval) {
			err := l.renew(ctx, max(minInterval, min(RequestTimeout, l.Remaining()/renewals)))
			interval = max(minInterval, l.Remaining()/renewals)
			if err != nil {
				interval = min(interval, retryInterval)
			}
		}
	}()
}

// sleepUntil returns false if the lease has ended.
func (l *Lease) sleepUntil(at time.Duration) bool {
	for l.Check() == nil {
		remaining := at - now()
		if remaining <= 0 {
			return true
		}
		l.sleep(remaining)
	}
	return false
}

// sleep returns after that time, after maxSleep, or when the lease has ended.
func (l *Lease) sleep(duration time.Duration) {
	timer := time.NewTimer(min(duration, maxSleep))
	defer timer.Stop()
	select {
	case <-l.ended:
	case <-timer.C:
	}
}

// renew renews the lease once. The lease is lost if the agent says so, or has ended without having told that it drains.
func (l *Lease) renew(ctx context.Context, timeout time.Duration) error {
	sent := now()
	renewed, err := l.ask(ctx, http.MethodPost, "/renew", timeout)
	l.guard.Lock()
	defer l.guard.Unlock()
	l.failure = err
	if hasEnded(err) && !l.draining {
		l.loseLocked(fmt.Errorf("its agent has ended: %w", err))
		return l.reason
	}
	if err == nil && l.reason == nil {
		l.expires = sent + renewed.expiresIn - expiryMargin
		l.draining = renewed.draining
	}
	return err
}

// ask sends a request about the lease.
func (l *Lease) ask(ctx context.Context, method, action string, timeout time.Duration) (grant, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var answer grant
	err := l.client.request(method, leasePath(l.ID)+action).run(ctx, &answer)
	if err == nil && answer.ID != l.ID {
		err = fmt.Errorf("%w: its answer is lease %q instead of %q", ErrUnavailable, answer.ID, l.ID)
	}
	// The successor of an agent that has drained does not know the lease.
	if isGone(err) && !(isUnknown(err) && l.Draining()) {
		l.guard.Lock()
		defer l.guard.Unlock()
		l.loseLocked(err)
		return answer, l.reason
	}
	return answer, err
}

func (l *Lease) loseLocked(why error) {
	l.endLocked(fmt.Errorf("%w: the lease of %s %q: %w", ErrLost, l.Kind, l.Name, why))
}

// endLocked ends the lease, unless it has ended.
func (l *Lease) endLocked(reason error) {
	if l.reason == nil {
		l.reason = reason
		l.end(reason)
		close(l.ended)
	}
}

func leasePath(id string) string {
	return "/v1/leases/" + url.PathEscape(id)
}
