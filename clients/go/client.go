package slotkeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// RequestTimeout is the time for the answer to a request that does not wait for a slot.
	RequestTimeout = 5 * time.Second
	// acquireMargin is the time for the answer after the end of the wait. The agent ends the wait. Without one, it waits for
	// Consul for 12 s.
	acquireMargin = 15 * time.Second
	// reloadTimeout is the time for the answer to a reload, which takes up to 20 s.
	reloadTimeout = 30 * time.Second
	// withdrawTimeout is the time for the end of a request that is withdrawn.
	withdrawTimeout = time.Second
	// maxTimeAsGranted is the age of an answer up to which the rest of its lease is used. That of an older one is asked for.
	maxTimeAsGranted = time.Second
)

// Client sends requests to one agent. Any number of goroutines may use it.
type Client struct {
	address   address
	tokenFile string
	// reading has a value while the token file is read.
	reading chan struct{}
}

// ClientOption is an option of [New].
type ClientOption func(*Client)

// TokenFile names the file with the agent's token, which an address that is not a unix socket needs. It is read for each
// request.
func TokenFile(path string) ClientOption {
	return func(c *Client) { c.tokenFile = path }
}

// New returns a client of the agent at unix:/path/of/the.sock or http://127.0.0.1:port, without connecting to it.
func New(agent string, options ...ClientOption) (*Client, error) {
	address, err := parseAddress(agent)
	if err != nil {
		return nil, err
	}
	client := &Client{address: address, reading: make(chan struct{}, 1)}
	for _, option := range options {
		option(client)
	}
	return client, nil
}

type wanted struct {
	wait time.Duration
	kind Kind
}

// Option is an option of [Client.Acquire].
type Option func(*wanted)

// Wait is how long to wait for a slot, at most an hour. By default the agent answers at once.
func Wait(wait time.Duration) Option {
	return func(w *wanted) { w.wait = wait }
}

// Of is the kind of what is acquired, by default [Semaphore].
func Of(kind Kind) Option {
	return func(w *wanted) { w.kind = kind }
}

// Acquire acquires the semaphore's slots, or the lock, of that name in the agent's configuration. Call [Lease.Release] at the
// end.
//
// A ctx that is cancelled ends the wait and leaves nothing in the queue. It is then the parent of [Lease.Context], so limit the
// wait by [Wait] rather than by a deadline of ctx.
//
// The request is sent once. If its answer is lost, the error is [ErrUnavailable], and the agent releases a slot that it has
// granted: at once if it could not send the answer, else when it was not renewed for the session's TTL and its margin.
func (c *Client) Acquire(ctx context.Context, name string, options ...Option) (*Lease, error) {
	wanted := wanted{kind: Semaphore}
	for _, option := range options {
		option(&wanted)
	}
	lease, err := c.acquire(ctx, name, wanted)
	if err != nil {
		return nil, fmt.Errorf("acquire %s %q: %w", wanted.kind, name, err)
	}
	return lease, nil
}

// WithLease acquires a lease, calls work with [Lease.Context], and releases the lease. If the lease was lost, the error is also
// [ErrLost].
func (c *Client) WithLease(ctx context.Context, name string, work func(context.Context, *Lease) error, options ...Option) error {
	lease, err := c.Acquire(ctx, name, options...)
	if err != nil {
		return err
	}
	defer lease.Release()
	err = work(lease.Context(), lease)
	if lost := lease.Check(); errors.Is(lost, ErrLost) {
		return errors.Join(err, lost)
	}
	return err
}

// Drain tells the agent that the workload is done: it releases everything, all leases too, and exits.
func (c *Client) Drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	return c.request(http.MethodPost, "/v1/drain").run(ctx, nil)
}

// Reload is what a reload has changed.
type Reload struct {
	// Added, Removed and Renamed are names of entries, Renamed such as "a to b".
	Added, Removed, Renamed []string
	// Changed are fields.
	Changed []string
	// Refused needs a restart, Pending cannot be applied yet, and Deferred is kept as it was; each says why.
	Refused, Pending, Deferred []string
}

// Reload makes the agent read its configuration again, and returns when it is applied.
func (c *Client) Reload(ctx context.Context) (Reload, error) {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	var report Reload
	err := c.request(http.MethodPost, "/v1/reload").run(ctx, &report)
	return report, err
}

func (c *Client) acquire(ctx context.Context, name string, wanted wanted) (*Lease, error) {
	if wanted.wait < 0 {
		return nil, fmt.Errorf("slotkeeper: the wait %v is negative", wanted.wait)
	}
	body, err := json.Marshal(map[string]string{"wait": text(wanted.wait)})
	if err != nil {
		return nil, fmt.Errorf("slotkeeper: %w", err)
	}
	request := c.request(http.MethodPost, "/v1/"+string(wanted.kind)+"s/"+url.PathEscape(name)+"/acquire")
	request.body = body
	sent := now()
	granted, err := c.await(ctx, request, wanted.wait)
	if err != nil {
		return nil, err
	}
	lease := newLease(ctx, c, granted, sent)
	// The lease counts from the request, which may have waited for longer than it lasts.
	if now()-sent > maxTimeAsGranted {
		if err := lease.renew(ctx, RequestTimeout); err != nil && lease.Remaining() <= 0 {
			lease.Release()
			return nil, err
		}
	}
	lease.start()
	return lease, nil
}

// await sends a request for a lease, and withdraws it if ctx is cancelled or the agent does not answer. A lease that is granted
// in that instant is released.
func (c *Client) await(ctx context.Context, request *exchange, wait time.Duration) (grant, error) {
	if ctx.Err() != nil {
		return grant{}, fmt.Errorf("slotkeeper: %w", context.Cause(ctx))
	}
	waiting, stopWaiting := context.WithTimeout(ctx, wait+acquireMargin)
	defer stopWaiting()
	sending, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()

	type outcome struct {
		granted grant
		err     error
	}
	answered := make(chan outcome, 1)
	go func() {
		var granted grant
		err := request.run(sending, &granted)
		answered <- outcome{granted, err}
	}()
	select {
	case answer := <-answered:
		return answer.granted, answer.err
	case <-waiting.Done():
	}

	if request.withdraw() {
		// Not by the context: that would discard an answer on its way.
		patience := time.AfterFunc(withdrawTimeout, abort)
		defer patience.Stop()
	} else {
		abort()
	}
	if answer := <-answered; answer.err == nil {
		c.release(answer.granted.ID)
	}
	if ctx.Err() != nil {
		return grant{}, fmt.Errorf("slotkeeper: %w", context.Cause(ctx))
	}
	return grant{}, request.unavailable(fmt.Errorf("no answer %v after the end of the wait", acquireMargin))
}

// release releases a lease. If no answer comes in time, the agent releases it when it is not renewed.
func (c *Client) release(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), RequestTimeout)
	defer cancel()
	_ = c.request(http.MethodDelete, leasePath(id)).run(ctx, nil)
}

// text is the duration as the agent reads it, rounded up to milliseconds.
func text(duration time.Duration) string {
	milliseconds := int64((duration + time.Millisecond - 1) / time.Millisecond)
	if milliseconds%1000 == 0 || milliseconds > 999_999 {
		return strconv.FormatInt((milliseconds+999)/1000, 10) + "s"
	}
	return strconv.FormatInt(milliseconds, 10) + "ms"
}
