package agenttest

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	slotkeeper "github.com/slotkeeper/slotkeeper/clients/go"
)

func TestALeaseIsRenewedUntilItIsReleased(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	wire, client := newWire(t, "unix", agent.socket)
	lease := acquire(t, client, "licences", slotkeeper.Wait(patience))
	if lease.Kind != slotkeeper.Semaphore || lease.Prefix != "service/licences" || lease.FencingToken == 0 || lease.LockIndex != nil {
		t.Errorf("%+v", lease.Info)
	}
	granted := time.Now().Add(lease.Remaining())
	waitFor(t, "the end of the lease as it was granted", func() bool { return time.Now().After(granted) })
	if err := lease.Check(); err != nil {
		t.Error(err)
	}
	if remaining := lease.Remaining(); remaining <= 0 || remaining > ttl {
		t.Errorf("%v remain", remaining)
	}
	if _, answered := wire.requests("renew_lease"); answered < 2 {
		t.Errorf("%d renewals", answered)
	}
	agent.expectLeases("licences", "held", 1)
	lease.Release()
	lease.Release()
	if cause := context.Cause(lease.Context()); cause != slotkeeper.ErrReleased {
		t.Errorf("the lease's context ended with %v", cause)
	}
	if err := lease.Check(); err != slotkeeper.ErrReleased || lease.Remaining() != 0 {
		t.Errorf("%v, %v remain", err, lease.Remaining())
	}
	if asked, answered := wire.requests("release_lease"); asked != 1 || answered != 1 {
		t.Errorf("%d releases, %d answered", asked, answered)
	}
	agent.expectLeases("licences", "held", 0)
}

func TestWithLeaseReleasesAtTheEndOfTheWork(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	_, client := newWire(t, "unix", agent.socket)
	failure := errors.New("work failed")
	err := client.WithLease(context.Background(), "single", func(ctx context.Context, lease *slotkeeper.Lease) error {
		if ctx != lease.Context() {
			t.Error("not the lease's context")
		}
		if _, err := client.Acquire(ctx, "single"); !errors.Is(err, slotkeeper.ErrTimedOut) {
			t.Errorf("the second one got %v", err)
		}
		return failure
	})
	if err != failure {
		t.Error(err)
	}
	if err := client.WithLease(context.Background(), "single", func(context.Context, *slotkeeper.Lease) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestARefusalHasStatusAndCode(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	_, client := newWire(t, "unix", agent.socket)
	acquire(t, client, "single", slotkeeper.Wait(patience))
	for name, expected := range map[string]slotkeeper.RefusedError{
		"single": {Status: http.StatusConflict, Code: "timed_out"},
		"absent": {Status: http.StatusNotFound, Code: "unknown_semaphore"},
		"held":   {Status: http.StatusForbidden, Code: "not_on_demand"},
	} {
		_, err := client.Acquire(context.Background(), name, slotkeeper.Wait(10*time.Millisecond))
		var refused *slotkeeper.RefusedError
		if !errors.As(err, &refused) || refused.Status != expected.Status || refused.Code != expected.Code || refused.Message == "" {
			t.Errorf("%s: %v", name, err)
		}
		if errors.Is(err, slotkeeper.ErrTimedOut) != (expected.Code == "timed_out") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestATokenFileIsReadForEachRequest(t *testing.T) {
	t.Parallel()
	consul := startConsul(t)
	agent := startAgent(t, consul)
	token := filepath.Join(filepath.Dir(agent.socket), "agent.token")
	const secret = "0123456789abcdef"
	write(t, token, secret)
	address := agent.listenTCP(token)

	mine := filepath.Join(filepath.Dir(agent.socket), "client.token")
	_, client := newWire(t, "tcp", address, slotkeeper.TokenFile(mine))
	if _, err := client.Acquire(context.Background(), "single"); !errors.Is(err, slotkeeper.ErrUnavailable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a token file: %v", err)
	}
	write(t, mine, "0123456789abcdeX\n")
	var refused *slotkeeper.RefusedError
	if _, err := client.Acquire(context.Background(), "single"); !errors.As(err, &refused) || refused.Code != "unauthorized" {
		t.Errorf("with a wrong token: %v", err)
	}
	write(t, mine, "two tokens\n")
	if _, err := client.Acquire(context.Background(), "single"); !errors.Is(err, slotkeeper.ErrUnavailable) {
		t.Errorf("with a malformed token: %v", err)
	}
	write(t, mine, secret+"\n")
	acquire(t, client, "single", slotkeeper.Wait(patience))
}

func TestACancelledWaitLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	_, client := newWire(t, "unix", agent.socket)
	first := acquire(t, client, "single", slotkeeper.Wait(patience))
	ctx, cancel := context.WithCancelCause(context.Background())
	answer := make(chan error)
	go func() {
		_, err := client.Acquire(ctx, "single", slotkeeper.Wait(time.Hour))
		answer <- err
	}()
	agent.expectLeases("single", "waiting", 1)
	enough := errors.New("waited for long enough")
	cancel(enough)
	if err := <-answer; !errors.Is(err, enough) {
		t.Error(err)
	}
	agent.expectLeases("single", "waiting", 0)
	first.Release()
	acquire(t, client, "single", slotkeeper.Wait(patience)).Release()
}

func TestASlotThatIsGrantedAsTheWaitIsCancelledIsReleased(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	wire, client := newWire(t, "unix", agent.socket)
	wire.inject("acquire_semaphore", hold)
	ctx, cancel := context.WithCancel(context.Background())
	answer := make(chan error)
	go func() {
		_, err := client.Acquire(ctx, "single", slotkeeper.Wait(time.Hour))
		answer <- err
	}()
	agent.expectLeases("single", "held", 1)
	cancel()
	if err := <-answer; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, answered := wire.requests("release_lease"); answered != 1 {
		t.Errorf("%d releases", answered)
	}
	agent.expectLeases("single", "held", 0)
}

func TestAContextOfTheCallerEndsThatOfTheLeaseAndNotTheLease(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	wire, client := newWire(t, "unix", agent.socket)
	ctx, cancel := context.WithCancel(context.Background())
	lease, err := client.Acquire(ctx, "single", slotkeeper.Wait(patience))
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	cancel()
	<-lease.Context().Done()
	waitFor(t, "a renewal", func() bool {
		_, answered := wire.requests("renew_lease")
		return answered > 0
	})
	if err := lease.Check(); err != nil {
		t.Error(err)
	}
}

// readOnly are the operations for monitoring, which this client leaves to others.
var readOnly = []string{
	"document", "events", "healthy", "live", "lock", "metrics", "ready", "semaphore", "startup", "status",
}

func TestEachOperationOfTheControlAPIIsCovered(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	wire, client := newWire(t, "unix", agent.socket)
	ctx := context.Background()

	lock := acquire(t, client, "leader", slotkeeper.Of(slotkeeper.Lock), slotkeeper.Wait(patience))
	if lock.Kind != slotkeeper.Lock || lock.Key != "service/leader" || lock.LockIndex == nil || !slices.Equal(lock.SlotIndexes, []int{0}) {
		t.Errorf("%+v", lock.Info)
	}
	lease := acquire(t, client, "licences", slotkeeper.Wait(patience))
	info, remaining, err := lease.Show(ctx)
	if err != nil || info.ID != lease.ID || info.FencingToken != lease.FencingToken || remaining <= 0 {
		t.Errorf("%+v, %v, %v", info, remaining, err)
	}
	waitFor(t, "a renewal", func() bool {
		_, answered := wire.requests("renew_lease")
		return answered > 0
	})
	lease.Release()
	if _, _, err := lease.Show(ctx); err == nil {
		t.Error("a released lease is shown")
	}
	agent.configure("  - {name: other, key: service/other, mode: on_demand}\ncontrol: {listen: \"unix:" + agent.socket + "\"}")
	if report, err := client.Reload(ctx); err != nil || !slices.Equal(report.Added, []string{"other"}) {
		t.Errorf("%+v %v", report, err)
	}
	agent.configure("nonsense: 1")
	var refused *slotkeeper.RefusedError
	if _, err := client.Reload(ctx); !errors.As(err, &refused) || refused.Code != "reload_refused" {
		t.Error(err)
	}
	lock.Release()
	if err := client.Drain(ctx); err != nil {
		t.Error(err)
	}
	if err := agent.process.Wait(); err != nil {
		t.Error(err)
	}

	var all []string
	for _, item := range wire.document.Paths.Map() {
		for _, operation := range item.Operations() {
			all = append(all, operation.OperationID)
		}
	}
	for _, id := range all {
		_, answered := wire.requests(id)
		if answered == 0 && !slices.Contains(readOnly, id) {
			t.Errorf("the client does not cover %s: let it, or add it to the list", id)
		}
	}
	for _, id := range readOnly {
		if !slices.Contains(all, id) {
			t.Errorf("%s is no operation", id)
		}
	}
}
