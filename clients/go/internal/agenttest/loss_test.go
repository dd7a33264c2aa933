package agenttest

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	slotkeeper "github.com/slotkeeper/slotkeeper/clients/go"
)

// lossMargin is how long after the end of its lease a holder's session surely lives.
const lossMargin = ttl / 10

// expectLoss waits for the loss of a lease that no request renews any more. It must come when the lease expires, and before
// another client has the slot at another agent.
func expectLoss(t *testing.T, lease *slotkeeper.Lease, other *agent) {
	t.Helper()
	expires := time.Now().Add(lease.Remaining())
	client := newClient(t, "unix:"+other.socket)
	granted := make(chan error, 1)
	go func() {
		next, err := client.Acquire(context.Background(), "single", slotkeeper.Wait(2*patience))
		if err == nil && lease.Context().Err() == nil {
			err = errors.New("another client has the slot before the loss")
		}
		granted <- err
		if next != nil {
			next.Release()
		}
	}()
	<-lease.Context().Done()
	late := time.Since(expires)
	if cause := context.Cause(lease.Context()); !errors.Is(cause, slotkeeper.ErrLost) {
		t.Errorf("the lease's context ended with %v", cause)
	}
	if late > lossMargin || late < -time.Second {
		t.Errorf("the loss was told %v after the lease expired", late)
	}
	if err := lease.Check(); !errors.Is(err, slotkeeper.ErrLost) || lease.Remaining() != 0 {
		t.Errorf("%v, %v remain", err, lease.Remaining())
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
}

func TestALossIsToldInTimeWhenEachConnectionIsClosed(t *testing.T) {
	t.Parallel()
	consul := startConsul(t)
	agent, other := startAgent(t, consul), startAgent(t, consul)
	// The wire accepts the connections for an agent that was killed.
	_, client := newWire(t, "unix", agent.socket)
	lease := acquire(t, client, "single", slotkeeper.Wait(patience))
	agent.kill()
	expectLoss(t, lease, other)
}

// expectEnd waits for the loss of a lease whose agent has just ended. It must come at the next renewal.
func expectEnd(t *testing.T, lease *slotkeeper.Lease) {
	t.Helper()
	began, remaining := time.Now(), lease.Remaining()
	<-lease.Context().Done()
	if cause := context.Cause(lease.Context()); !errors.Is(cause, slotkeeper.ErrLost) || !strings.Contains(cause.Error(), "its agent has ended") {
		t.Errorf("the lease's context ended with %v", cause)
	}
	if took := time.Since(began); took > remaining/2 {
		t.Errorf("the loss was told after %v, with %v of the lease remaining", took, remaining)
	}
}

func TestALossIsToldAtTheNextRenewalWhenTheAgentIsKilled(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	lease := acquire(t, newClient(t, "unix:"+agent.socket), "single", slotkeeper.Wait(patience))
	agent.kill()
	expectEnd(t, lease)
}

func TestAnAgentThatEndsBySIGTERMTakesNoLease(t *testing.T) {
	t.Parallel()
	consul := startConsul(t)
	agent, other := startAgent(t, consul), startAgent(t, consul)
	lease := acquire(t, newClient(t, "unix:"+agent.socket), "single", slotkeeper.Wait(patience))
	agent.signal(syscall.SIGTERM)
	for began := time.Now(); !lease.Draining(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("the end was not told")
		}
	}
	if err := lease.Check(); err != nil {
		t.Error(err)
	}
	// The slot is free when the program releases it, and not before.
	if _, err := newClient(t, "unix:"+other.socket).Acquire(context.Background(), "single"); !errors.Is(err, slotkeeper.ErrTimedOut) {
		t.Errorf("another client has the slot: %v", err)
	}
	lease.Release()
	began := time.Now()
	acquire(t, newClient(t, "unix:"+other.socket), "single", slotkeeper.Wait(patience))
	if took := time.Since(began); took > ttl/2 {
		t.Errorf("the slot was free after %v", took)
	}
}

func TestALossIsToldInTimeWhenTheAgentIsStopped(t *testing.T) {
	t.Parallel()
	consul := startConsul(t)
	agent, other := startAgent(t, consul), startAgent(t, consul)
	wire, client := newWire(t, "unix", agent.socket)
	lease := acquire(t, client, "single", slotkeeper.Wait(patience))
	agent.signal(syscall.SIGSTOP)
	expectLoss(t, lease, other)
	// The agent may have answered others before it was stopped.
	if asked, answered := wire.requests("renew_lease"); asked-answered < 2 {
		t.Errorf("%d renewals, %d answered", asked, answered)
	}
	agent.signal(syscall.SIGCONT)
	lease.Release()
}

func TestALeaseSurvivesAShortStopOfTheAgent(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	wire, client := newWire(t, "unix", agent.socket)
	lease := acquire(t, client, "single", slotkeeper.Wait(patience))
	agent.signal(syscall.SIGSTOP)
	waitFor(t, "a renewal without an answer", func() bool {
		asked, _ := wire.requests("renew_lease")
		return asked > 0
	})
	agent.signal(syscall.SIGCONT)
	waitFor(t, "two renewals", func() bool {
		_, answered := wire.requests("renew_lease")
		return answered >= 2
	})
	if err := lease.Check(); err != nil {
		t.Error(err)
	}
}

func TestALeaseIsLostWhenItsAgentIsRestarted(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	_, client := newWire(t, "unix", agent.socket)
	lease := acquire(t, client, "single", slotkeeper.Wait(patience))
	agent.kill()
	agent.start()
	<-lease.Context().Done()
	// The new agent does not know the lease.
	var refused *slotkeeper.RefusedError
	if cause := context.Cause(lease.Context()); !errors.Is(cause, slotkeeper.ErrLost) || !errors.As(cause, &refused) || refused.Code != "unknown_lease" {
		t.Errorf("the lease's context ended with %v", cause)
	}
	lease.Release()
	acquire(t, client, "single", slotkeeper.Wait(patience))
}

func TestAnEvictedLeaseIsLostAndItsReleaseHandsTheSlotOff(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	_, client := newWire(t, "unix", agent.socket)
	lost := client.WithLease(context.Background(), "single", func(ctx context.Context, lease *slotkeeper.Lease) error {
		evict := exec.Command(slotkeeperBin(t), "evict", "--yes", "--wait", "0s", lease.Prefix, lease.Session)
		evict.Env = environment(agent.consul)
		if output, err := evict.CombinedOutput(); err != nil && evict.ProcessState.ExitCode() != 75 {
			t.Fatalf("%v: %s", err, output)
		}
		<-ctx.Done()
		return ctx.Err()
	}, slotkeeper.Wait(patience))
	if !errors.Is(lost, slotkeeper.ErrLost) || !errors.Is(lost, context.Canceled) {
		t.Error(lost)
	}
	began := time.Now()
	acquire(t, client, "single", slotkeeper.Wait(patience))
	if took := time.Since(began); took > ttl/2 {
		t.Errorf("the slot was free after %v", took)
	}
}

func TestAnAcquisitionWithoutAnAnswerIsNotRepeated(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	wire, client := newWire(t, "unix", agent.socket)
	wire.inject("acquire_semaphore", lose)
	if _, err := client.Acquire(context.Background(), "single", slotkeeper.Wait(patience)); !errors.Is(err, slotkeeper.ErrUnavailable) {
		t.Error(err)
	}
	if asked, _ := wire.requests("acquire_semaphore"); asked != 1 {
		t.Errorf("%d requests", asked)
	}
	// The agent releases what it has granted, since nobody renews it.
	wire.inject("acquire_semaphore", pass)
	began := time.Now()
	acquire(t, client, "single", slotkeeper.Wait(patience))
	if took := time.Since(began); took > ttl+ttl/10+3*time.Second {
		t.Errorf("the slot was free after %v", took)
	}
}

func TestAReleaseWithoutAnAnswerIsNoError(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	wire, client := newWire(t, "unix", agent.socket)
	wire.inject("release_lease", lose)
	acquire(t, client, "single", slotkeeper.Wait(patience)).Release()
	if asked, _ := wire.requests("release_lease"); asked != 1 {
		t.Errorf("%d requests", asked)
	}
	acquire(t, client, "single", slotkeeper.Wait(patience))
}

func TestARequestToAStoppedAgentEnds(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	_, client := newWire(t, "unix", agent.socket)
	lease := acquire(t, client, "licences", slotkeeper.Wait(patience))
	agent.signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := client.Acquire(ctx, "licences", slotkeeper.Wait(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the cancelled wait took %v", took)
	}
	began = time.Now()
	lease.Release()
	if took := time.Since(began); took > slotkeeper.RequestTimeout+time.Second {
		t.Errorf("the release took %v", took)
	}
	agent.signal(syscall.SIGCONT)
	agent.expectLeases("licences", "held", 0)
}

func TestAnAgentThatIsNotThereIsUnavailable(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"unix:" + filepath.Join(t.TempDir(), "absent.sock"), "http://127.0.0.1:1"} {
		client := newClient(t, address)
		_, err := client.Acquire(context.Background(), "single", slotkeeper.Wait(patience))
		var system *net.OpError
		if !errors.Is(err, slotkeeper.ErrUnavailable) || !errors.As(err, &system) {
			t.Errorf("%s: %v", address, err)
		}
	}
}
