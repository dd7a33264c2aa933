package agenttest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	slotkeeper "github.com/slotkeeper/slotkeeper/clients/go"
)

// document is the OpenAPI document of an agent.
type document struct {
	*openapi3.T
	routes routers.Router
}

func readDocument(t *testing.T, network, address string) document {
	t.Helper()
	parsed, err := openapi3.NewLoader().LoadFromData(get(t, network, address, "/v1/openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	routes, err := gorillamux.NewRouter(parsed)
	if err != nil {
		t.Fatal(err)
	}
	return document{parsed, routes}
}

// fault is what happens to an answer on its way to the client.
type fault int

const (
	pass fault = iota
	// lose closes the connection instead.
	lose
	// hold forwards it when the client has withdrawn its request.
	hold
)

// wire is between a client and an agent. It checks each request and its answer against the agent's document. The agent serves
// one request per connection and then closes it, so that a connection is an exchange.
type wire struct {
	t               *testing.T
	network, target string
	document        document
	path            string

	guard              sync.Mutex
	faults             map[string]fault
	asked, answered    map[string]int
	exchanges, servers sync.WaitGroup
	open               map[net.Conn]bool
	isClosed           bool
}

// newWire returns a wire to the agent at that address, and a client at its other end.
func newWire(t *testing.T, network, target string, options ...slotkeeper.ClientOption) (*wire, *slotkeeper.Client) {
	t.Helper()
	folder, err := os.MkdirTemp("", "slotkeeper-go-")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{
		t: t, network: network, target: target, document: readDocument(t, network, target),
		path: filepath.Join(folder, "wire.sock"), faults: map[string]fault{},
		asked: map[string]int{}, answered: map[string]int{}, open: map[net.Conn]bool{},
	}
	// A client at an address of its own kind: the header Host of the agent's.
	var listener net.Listener
	address := ""
	if network == "unix" {
		listener, err = net.Listen("unix", w.path)
		address = "unix:" + w.path
	} else {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			address = "http://" + listener.Addr().String()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	w.servers.Add(1)
	go func() {
		defer w.servers.Done()
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			w.exchanges.Add(1)
			go func() {
				defer w.exchanges.Done()
				w.exchange(connection)
			}()
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		w.servers.Wait()
		w.guard.Lock()
		w.isClosed = true
		for connection := range w.open {
			connection.Close()
		}
		w.guard.Unlock()
		w.exchanges.Wait()
		os.RemoveAll(folder)
	})
	return w, newClient(t, address, options...)
}

// inject sets what happens to answers of an operation.
func (w *wire) inject(operation string, fault fault) {
	w.guard.Lock()
	defer w.guard.Unlock()
	w.faults[operation] = fault
}

// requests returns how many requests of that operation were sent, and how many of them the agent has answered.
func (w *wire) requests(operation string) (asked, answered int) {
	w.guard.Lock()
	defer w.guard.Unlock()
	return w.asked[operation], w.answered[operation]
}

// track makes the end of the test close the connection.
func (w *wire) track(connection net.Conn) func() {
	w.guard.Lock()
	defer w.guard.Unlock()
	w.open[connection] = true
	if w.isClosed {
		connection.Close()
	}
	return func() {
		w.guard.Lock()
		defer w.guard.Unlock()
		delete(w.open, connection)
		connection.Close()
	}
}

func (w *wire) exchange(client net.Conn) {
	defer w.track(client)()
	agent, err := net.Dial(w.network, w.target)
	if err != nil {
		return // As for a client that connects to an agent that is not there.
	}
	defer w.track(agent)()

	var sent bytes.Buffer
	request, err := http.ReadRequest(bufio.NewReader(io.TeeReader(io.TeeReader(client, &sent), agent)))
	if err != nil {
		return
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	route, parameters, err := w.document.routes.FindRoute(request)
	if err != nil {
		w.t.Errorf("%s %s: %v", request.Method, request.URL, err)
		return
	}
	operation := route.Operation.OperationID
	input := &openapi3filter.RequestValidationInput{
		Request: request, PathParams: parameters, Route: route,
		Options: &openapi3filter.Options{IncludeResponseStatus: true, AuthenticationFunc: hasToken, MultiError: true},
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
		w.t.Errorf("%s %s with %q: %v", request.Method, request.URL, body, err)
	}
	w.guard.Lock()
	w.asked[operation]++
	w.guard.Unlock()

	withdrawn := make(chan struct{})
	w.exchanges.Add(1)
	go func() {
		defer w.exchanges.Done()
		_, _ = io.Copy(agent, client)
		_ = agent.(interface{ CloseWrite() error }).CloseWrite()
		close(withdrawn)
	}()
	received, err := io.ReadAll(agent)
	if err != nil || len(received) == 0 {
		return
	}
	w.checkAnswer(input, received)
	w.guard.Lock()
	w.answered[operation]++
	fault := w.faults[operation]
	w.guard.Unlock()
	switch fault {
	case pass:
	case lose:
		return
	case hold:
		<-withdrawn
	}
	_, _ = client.Write(received)
}

func (w *wire) checkAnswer(input *openapi3filter.RequestValidationInput, received []byte) {
	response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(received)), input.Request)
	if err == nil {
		err = openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
			RequestValidationInput: input, Status: response.StatusCode, Header: response.Header, Body: response.Body,
			Options: input.Options,
		})
	}
	if err != nil {
		w.t.Errorf("the answer to %s %s: %q: %v", input.Request.Method, input.Request.URL, received, err)
	}
}

// hasToken checks the security requirement of a request. Whether the token is right is the agent's matter.
func hasToken(_ context.Context, input *openapi3filter.AuthenticationInput) error {
	header := input.RequestValidationInput.Request.Header.Get("Authorization")
	if !strings.HasPrefix(header, "Bearer ") {
		return input.NewError(fmt.Errorf("the header Authorization is %q", header))
	}
	return nil
}
