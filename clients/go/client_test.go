package slotkeeper

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// stub is a client of a server that answers each request so.
func stub(t *testing.T, answer http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	client, err := New(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestAnAddressIsASocketOrALoopbackAddress(t *testing.T) {
	for _, good := range []string{
		"unix:/run/slotkeeper/control.sock", "unix:/a/b", "http://127.0.0.1:9378", "http://127.0.0.1:1", "http://127.9.9.9:80",
		"http://[::1]:80", "http://[::1]:9378/", "http://localhost:80",
	} {
		if _, err := New(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{
		"", "unix:", "unix:relative.sock", "/run/control.sock", "127.0.0.1:9378", "https://127.0.0.1:9378", "http://127.0.0.1",
		"http://:9378", "http://127.0.0.1:9378/v1", "http://127.0.0.1:9378?a=b", "http://user@127.0.0.1:9378",
		"http://user@127.0.0.1:80", "http://example.com:80", "http://10.0.0.1:80", "https://127.0.0.1:80", "http://127.0.0.1:99999",
		"http://127.0.0.1:0", "http://127.0.0.1:80/path", "http://127.0.0.1:80#f", "unix:rel.sock", "http://localhost.example.com:80",
		"http://127.0.0.1.example.com:80", "http://[::2]:80",
	} {
		if _, err := New(bad); err == nil || !strings.Contains(err.Error(), "write unix:") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestAWaitIsSentInWholeSecondsOrMilliseconds(t *testing.T) {
	for wait, expected := range map[time.Duration]string{
		0: "0s", time.Nanosecond: "1ms", 1500 * time.Millisecond: "1500ms", 90 * time.Second: "90s", time.Hour: "3600s",
		999_999 * time.Millisecond: "999999ms", 1000_001 * time.Millisecond: "1001s",
	} {
		if sent := text(wait); sent != expected {
			t.Errorf("%v: %s", wait, sent)
		}
	}
	if _, err := stub(t, nil).Acquire(context.Background(), "any", Wait(-time.Second)); err == nil {
		t.Error("a negative wait was sent")
	}
}

func TestATokenIsOneWord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for content, expected := range map[string]string{
		"secret\n": "secret", "": "", "two words": "", "line\nline": "", "späte": "", strings.Repeat("x", maxTokenBytes+1): "",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		token, err := readToken(path)
		if token != expected || (err == nil) != (expected != "") {
			t.Errorf("%.20q: %q, %v", content, token, err)
		}
	}
}

func TestATokenFileThatHangsHoldsUpNoLoss(t *testing.T) {
	client := stub(t, func(answer http.ResponseWriter, _ *http.Request) {
		answer.Write([]byte(`{"lease":"a","slot_indexes":[0],"fencing_token":1,"expires_in_seconds":2}`))
	})
	client.tokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(client.tokenFile, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	lease, err := client.Acquire(context.Background(), "any")
	if err != nil {
		t.Fatal(err)
	}
	expires := time.Now().Add(lease.Remaining())
	// The opening of a FIFO waits for a writer.
	if err := os.Remove(client.tokenFile); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(client.tokenFile, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		writer, err := os.OpenFile(client.tokenFile, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		writer.Close()
	})
	<-lease.Context().Done()
	if late := time.Since(expires); late > time.Second || !errors.Is(lease.Check(), ErrLost) || !errors.Is(lease.Check(), context.DeadlineExceeded) {
		t.Errorf("%v, %v after the lease expired", lease.Check(), late)
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := client.Acquire(ctx, "any"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	began := time.Now()
	lease.Release()
	if took := time.Since(began); took > RequestTimeout+time.Second {
		t.Errorf("the release took %v", took)
	}
}

func TestAnAnswerIsBounded(t *testing.T) {
	piece := []byte(strings.Repeat(" ", 64<<10))
	client := stub(t, func(answer http.ResponseWriter, request *http.Request) {
		for {
			if _, err := answer.Write(piece); err != nil {
				return
			}
		}
	})
	if _, err := client.Acquire(context.Background(), "any"); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "more than") {
		t.Error(err)
	}
}

func TestAnAnswerThatIsNoLeaseIsUnavailable(t *testing.T) {
	for _, body := range []string{
		"", "nonsense", "null", "[]", "{}", `{"lease":1}`,
		`{"lease":"a","slot_indexes":[0],"fencing_token":1,"expires_in_seconds":-1}`,
		`{"lease":"a","slot_indexes":[0],"fencing_token":1,"expires_in_seconds":1e999}`,
		`{"lease":"a","slot_indexes":[0],"fencing_token":1,"expires_in_seconds":null}`,
		`{"lease":"a","slot_indexes":[0],"fencing_token":1}`,
		`{"lease":"a","slot_indexes":[0],"expires_in_seconds":60}`,
	} {
		client := stub(t, func(answer http.ResponseWriter, _ *http.Request) { answer.Write([]byte(body)) })
		if _, err := client.Acquire(context.Background(), "any"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%q: %v", body, err)
		}
	}
	var refused *RefusedError
	client := stub(t, func(answer http.ResponseWriter, _ *http.Request) { answer.WriteHeader(http.StatusTeapot) })
	if _, err := client.Acquire(context.Background(), "any"); !errors.As(err, &refused) || refused.Status != http.StatusTeapot {
		t.Error(err)
	}
	// Another server may lead elsewhere, with the token.
	client = stub(t, func(answer http.ResponseWriter, request *http.Request) {
		http.Redirect(answer, request, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
	})
	if _, err := client.Acquire(context.Background(), "any"); !errors.As(err, &refused) {
		t.Error(err)
	}
}

func TestALeaseCountsFromTheRequestAndNotFromTheAnswer(t *testing.T) {
	renewed := make(chan struct{}, 10)
	delay := maxTimeAsGranted + 100*time.Millisecond
	client := stub(t, func(answer http.ResponseWriter, request *http.Request) {
		expires := `1`
		switch {
		case request.Method == http.MethodDelete:
		case strings.HasSuffix(request.URL.Path, "/acquire"):
			time.Sleep(delay)
		default:
			renewed <- struct{}{}
			expires = `60`
		}
		answer.Write([]byte(`{"lease":"a/b","slot_indexes":[0],"fencing_token":1,"expires_in_seconds":` + expires + `}`))
	})
	// It expired while the answer was on its way: the renewal comes first.
	lease, err := client.Acquire(context.Background(), "any", Wait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if len(renewed) != 1 || lease.Check() != nil || lease.Remaining() > time.Minute-expiryMargin {
		t.Errorf("%d renewals, %v, %v", len(renewed), lease.Check(), lease.Remaining())
	}
}

func TestTheAnswerToARenewalIsOfTheSameLease(t *testing.T) {
	client := stub(t, func(answer http.ResponseWriter, request *http.Request) {
		id, expires := "a", "2"
		if strings.HasSuffix(request.URL.Path, "/renew") {
			id, expires = "other", "60"
		}
		answer.Write([]byte(`{"lease":"` + id + `","slot_indexes":[0],"fencing_token":1,"expires_in_seconds":` + expires + `}`))
	})
	lease, err := client.Acquire(context.Background(), "any")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	<-lease.Context().Done()
	if cause := context.Cause(lease.Context()); !errors.Is(cause, ErrLost) || !strings.Contains(cause.Error(), `lease "other" instead of "a"`) {
		t.Error(cause)
	}
}

func TestALeaseHasALongestTime(t *testing.T) {
	client := stub(t, func(answer http.ResponseWriter, _ *http.Request) {
		answer.Write([]byte(`{"lease":"a","slot_indexes":[0],"fencing_token":1,"expires_in_seconds":1e12}`))
	})
	lease, err := client.Acquire(context.Background(), "any")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if remaining := lease.Remaining(); remaining > maxLease || remaining < maxLease/2 {
		t.Errorf("%v remain", remaining)
	}
}

func TestALeaseExpiresWhileItsRenewalHangs(t *testing.T) {
	hang := make(chan struct{})
	client := stub(t, func(answer http.ResponseWriter, request *http.Request) {
		if strings.HasSuffix(request.URL.Path, "/renew") {
			<-hang
		}
		answer.Write([]byte(`{"lease":"a","slot_indexes":[0],"fencing_token":1,"expires_in_seconds":2}`))
	})
	t.Cleanup(func() { close(hang) })
	began := time.Now()
	lease, err := client.Acquire(context.Background(), "any")
	if err != nil {
		t.Fatal(err)
	}
	<-lease.Context().Done()
	if took := time.Since(began); took < 1500*time.Millisecond || took > 3*time.Second {
		t.Errorf("it expired after %v", took)
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, ErrLost) || !errors.Is(cause, ErrUnavailable) || !errors.Is(cause, context.DeadlineExceeded) {
		t.Error(cause)
	}
	lease.Release()
	if err := lease.Check(); !errors.Is(err, ErrLost) {
		t.Errorf("after the release: %v", err)
	}
}

func TestALeaseIsLostAtARenewalByAnAgentThatHasEnded(t *testing.T) {
	const granted = `{"lease":"a","slot_indexes":[0],"fencing_token":1,"expires_in_seconds":6}`
	refuse := func(status int, code string) func(http.ResponseWriter) {
		return func(answer http.ResponseWriter) {
			answer.WriteHeader(status)
			answer.Write([]byte(`{"error":"refused","code":"` + code + `"}`))
		}
	}
	for _, example := range []struct {
		name, network, address string
		// renewal answers a renewal. Without one, the server has ended.
		renewal func(http.ResponseWriter)
		isLost  bool
	}{
		{"a refused connection", "tcp", "127.0.0.1:0", nil, true},
		{"a missing socket", "unix", filepath.Join(t.TempDir(), "a.sock"), nil, true},
		{"draining", "tcp", "127.0.0.1:0", refuse(http.StatusServiceUnavailable, "draining"), true},
		{"busy", "tcp", "127.0.0.1:0", refuse(http.StatusServiceUnavailable, "busy"), false},
		{"another status", "tcp", "127.0.0.1:0", refuse(http.StatusInternalServerError, "draining"), false},
		{"a closed connection", "tcp", "127.0.0.1:0", func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, false},
	} {
		t.Run(example.name, func(t *testing.T) {
			t.Parallel()
			renewed := make(chan struct{}, 100)
			listener, err := net.Listen(example.network, example.address)
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
				if strings.HasSuffix(request.URL.Path, "/renew") {
					renewed <- struct{}{}
					example.renewal(answer)
					return
				}
				answer.Write([]byte(granted))
			}))
			server.Listener.Close()
			server.Listener = listener
			server.Start()
			defer server.Close()
			address := "http://" + listener.Addr().String()
			if example.network == "unix" {
				address = "unix:" + example.address
			}
			client, err := New(address)
			if err != nil {
				t.Fatal(err)
			}
			lease, err := client.Acquire(context.Background(), "any")
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release()
			if example.renewal == nil {
				server.Close()
			}
			if !example.isLost {
				<-renewed
				<-renewed
				if err := lease.Check(); err != nil {
					t.Error(err)
				}
				return
			}
			<-lease.Context().Done()
			cause := context.Cause(lease.Context())
			if !errors.Is(cause, ErrLost) || !strings.Contains(cause.Error(), "its agent has ended") {
				t.Error(cause)
			}
			if remaining := lease.expires - now(); remaining < 2*time.Second {
				t.Errorf("the loss was told %v before the lease expired", remaining)
			}
		})
	}
}

func TestALeaseOutlastsAnAgentThatHasDrained(t *testing.T) {
	for _, example := range []struct {
		status int
		code   string
		lasts  bool
	}{
		{http.StatusServiceUnavailable, "draining", true},
		{http.StatusNotFound, "unknown_lease", true},
		{http.StatusGone, "lease_lost", false},
	} {
		t.Run(example.code, func(t *testing.T) {
			t.Parallel()
			var renewals atomic.Int32
			client := stub(t, func(answer http.ResponseWriter, request *http.Request) {
				if strings.HasSuffix(request.URL.Path, "/renew") && renewals.Add(1) > 1 {
					answer.WriteHeader(example.status)
					answer.Write([]byte(`{"error":"refused","code":"` + example.code + `"}`))
					return
				}
				answer.Write([]byte(`{"lease":"a","slot_indexes":[0],"fencing_token":1,"expires_in_seconds":3,"draining":true}`))
			})
			lease, err := client.Acquire(context.Background(), "any")
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release()
			<-lease.Context().Done()
			if remaining := lease.expires - now(); (remaining <= 0) != example.lasts {
				t.Errorf("the loss was told %v before the lease expired", remaining)
			}
			if !lease.Draining() {
				t.Error("it was not told that the agent drains")
			}
		})
	}
}

func TestARenewalWithoutATokenFileIsRepeated(t *testing.T) {
	renewed := make(chan struct{}, 100)
	client := stub(t, func(answer http.ResponseWriter, request *http.Request) {
		if strings.HasSuffix(request.URL.Path, "/renew") {
			renewed <- struct{}{}
		}
		answer.Write([]byte(`{"lease":"a","slot_indexes":[0],"fencing_token":1,"expires_in_seconds":3}`))
	})
	client.tokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(client.tokenFile, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	lease, err := client.Acquire(context.Background(), "any")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if err := os.Remove(client.tokenFile); err != nil {
		t.Fatal(err)
	}
	<-lease.Context().Done()
	if cause := context.Cause(lease.Context()); !errors.Is(cause, os.ErrNotExist) || strings.Contains(cause.Error(), "ended") || len(renewed) > 0 {
		t.Errorf("%v after %d renewals", cause, len(renewed))
	}
}

func TestAnAcquisitionThatIsCancelledBeforeItIsSentSendsNothing(t *testing.T) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "a.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := New("unix:" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := client.Acquire(ctx, "any", Wait(time.Hour)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := listener.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := listener.Accept(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection, or %v", err)
	}
}
