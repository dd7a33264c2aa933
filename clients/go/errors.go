package slotkeeper

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
)

var (
	// ErrTimedOut is the refusal of a request for which no slot became free within its wait. It is a [RefusedError].
	ErrTimedOut = errors.New("slotkeeper: timed out waiting for a slot")
	// ErrUnavailable means that the agent did not answer, or not completely, or not in time.
	ErrUnavailable = errors.New("slotkeeper: agent unavailable")
	// ErrLost means that the lease is no longer held, and another client may have the slot. Stop what uses it.
	ErrLost = errors.New("slotkeeper: lease lost")
	// ErrReleased is the cause of [Lease.Context] after [Lease.Release].
	ErrReleased = errors.New("slotkeeper: lease released")
)

// RefusedError is an error that the agent answered.
type RefusedError struct {
	// Status is the HTTP status.
	Status int
	// Code is for programs, such as "blocked". It is empty if the answer had none.
	Code string
	// Message is for people. Its wording may change.
	Message string
}

func (e *RefusedError) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("slotkeeper: %s (%d)", e.Message, e.Status)
	}
	return fmt.Sprintf("slotkeeper: %s (%d %s)", e.Message, e.Status, e.Code)
}

// Is reports whether target is [ErrTimedOut] and this is such a refusal.
func (e *RefusedError) Is(target error) bool {
	return target == ErrTimedOut && e.Code == "timed_out"
}

// isGone reports whether the agent has answered that a lease is not held.
func isGone(err error) bool {
	var refused *RefusedError
	return isUnknown(err) || errors.As(err, &refused) && refused.Status == http.StatusGone
}

// isUnknown reports whether the agent has answered that it does not know a lease.
func isUnknown(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused) && refused.Code == "unknown_lease"
}

// hasEnded reports whether the agent that granted a lease has ended, or is ending: it refuses the connection, its socket is
// missing, or it answers that it is draining. Nothing renews its leases any more.
func hasEnded(err error) bool {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refused.Status == http.StatusServiceUnavailable && refused.Code == "draining"
	}
	// A token file may be missing too: that is no failure of a connection.
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial" &&
		(errors.Is(failed, syscall.ECONNREFUSED) || errors.Is(failed, syscall.ENOENT))
}
