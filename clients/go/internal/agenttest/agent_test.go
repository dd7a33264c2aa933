package agenttest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	slotkeeper "github.com/slotkeeper/slotkeeper/clients/go"
)

const (
	// patience is the time for anything that surely happens.
	patience = 30 * time.Second
	// ttl is Consul's shortest TTL of a session.
	ttl = 10 * time.Second
	// configuration is that of each agent. Its first argument is the TTL, the second one the rest.
	configuration = `
session: {ttl: %v}
http: {listen: "127.0.0.1:0"}
semaphores:
  - {name: licences, prefix: service/licences, limit: 2, mode: on_demand}
  - {name: single, prefix: service/single, limit: 1, mode: on_demand}
  - {name: held, prefix: service/held, limit: 1}
locks:
  - {name: leader, key: service/leader, mode: on_demand}
%s`
)

func slotkeeperBin(t *testing.T) string {
	t.Helper()
	binary := os.Getenv("SLOTKEEPER_BIN")
	if binary == "" {
		t.Fatal("SLOTKEEPER_BIN is not set: name the slotkeeper binary to test with")
	}
	return binary
}

// startConsul starts a server for several agents, and returns its address.
func startConsul(t *testing.T) string {
	t.Helper()
	command := exec.Command(slotkeeperBin(t), "dev", "--listen", "127.0.0.1:0")
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, command)
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if address, ok := strings.CutPrefix(strings.TrimSpace(lines.Text()), "export CONSUL_HTTP_ADDR="); ok {
			go io.Copy(io.Discard, output)
			return address
		}
	}
	t.Fatal("slotkeeper dev ended without an address")
	return ""
}

// environment is that of a process that uses the server.
func environment(consul string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "CONSUL_HTTP_ADDR=" + consul}
}

// start starts a process that is killed at the end of the test.
func start(t *testing.T, command *exec.Cmd) {
	t.Helper()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
}

// agent is an agent that listens at a socket in a folder of its own.
type agent struct {
	t              *testing.T
	consul, socket string
	configFile     string
	process        *exec.Cmd
}

func startAgent(t *testing.T, consul string) *agent {
	t.Helper()
	// The paths of unix sockets are short, so not t.TempDir.
	folder, err := os.MkdirTemp("", "slotkeeper-go-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	socket := filepath.Join(folder, "control.sock")
	agent := &agent{t: t, consul: consul, socket: socket, configFile: filepath.Join(folder, "slots.yaml")}
	agent.configure(fmt.Sprintf("control: {listen: %q}", "unix:"+socket))
	agent.start()
	waitFor(t, "the agent's socket", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	return agent
}

func (a *agent) configure(rest string) {
	a.t.Helper()
	if err := os.WriteFile(a.configFile, []byte(fmt.Sprintf(configuration, ttl, rest)), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *agent) start() {
	a.t.Helper()
	a.process = exec.Command(slotkeeperBin(a.t), "agent", "--config", a.configFile, "--log-level", "warn")
	a.process.Env = environment(a.consul)
	a.process.Stderr = a.t.Output()
	start(a.t, a.process)
}

func (a *agent) signal(signal syscall.Signal) {
	a.t.Helper()
	if err := a.process.Process.Signal(signal); err != nil {
		a.t.Fatal(err)
	}
}

func (a *agent) kill() {
	a.t.Helper()
	a.signal(syscall.SIGKILL)
	_ = a.process.Wait()
}

// expectLeases waits until that many leases of the semaphore are in that state. The status follows an answer a little later.
func (a *agent) expectLeases(semaphore, state string, count int) {
	a.t.Helper()
	waitFor(a.t, fmt.Sprintf("%d leases of %s that are %s", count, semaphore, state), func() bool {
		return a.leases(semaphore, state) == count
	})
}

// leases returns how many leases of the semaphore are in that state, as the agent's status shows it.
func (a *agent) leases(semaphore, state string) int {
	a.t.Helper()
	var status struct {
		Leases []struct{ State string }
	}
	if err := json.Unmarshal(get(a.t, "unix", a.socket, "/v1/semaphores/"+semaphore), &status); err != nil {
		a.t.Fatal(err)
	}
	count := 0
	for _, lease := range status.Leases {
		if lease.State == state {
			count++
		}
	}
	return count
}

// get reads an endpoint without the client and without a check of the answer.
func get(t *testing.T, network, address, path string) []byte {
	t.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: patience}
	response, err := client.Get("http://slotkeeper" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v %s", path, response.Status, err, body)
	}
	return body
}

// waitFor fails the test if the condition does not become true.
func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %v for %s", patience, what)
		}
	}
}

func newClient(t *testing.T, address string, options ...slotkeeper.ClientOption) *slotkeeper.Client {
	t.Helper()
	client, err := slotkeeper.New(address, options...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// acquire acquires a lease that is released at the end of the test.
func acquire(t *testing.T, client *slotkeeper.Client, name string, options ...slotkeeper.Option) *slotkeeper.Lease {
	t.Helper()
	lease, err := client.Acquire(context.Background(), name, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lease.Release)
	return lease
}

// listenTCP restarts the agent at a loopback address with that token file, and returns the address.
func (a *agent) listenTCP(token string) string {
	a.t.Helper()
	// The log names the port.
	a.kill()
	a.configure(fmt.Sprintf("control: {listen: \"127.0.0.1:0\", token_file: %q}", token))
	a.process = exec.Command(slotkeeperBin(a.t), "agent", "--config", a.configFile, "--log-format", "json")
	a.process.Env = environment(a.consul)
	output, err := a.process.StderrPipe()
	if err != nil {
		a.t.Fatal(err)
	}
	start(a.t, a.process)
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "control endpoints served"); ok {
			_, address, _ := strings.Cut(rest, "http://")
			address, _, _ = strings.Cut(address, `"`)
			go io.Copy(io.Discard, output)
			return address
		}
	}
	a.t.Fatal("the agent ended without an address")
	return ""
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
