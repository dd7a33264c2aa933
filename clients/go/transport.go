package slotkeeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

const (
	// maxAnswerBytes is the size of the largest answer. The usual one has 400 bytes.
	maxAnswerBytes = 1 << 20
	// maxHeaderBytes is the size of the largest header of an answer.
	maxHeaderBytes = 64 << 10
	// maxTokenBytes is the size of the largest token file.
	maxTokenBytes = 8 << 10
)

// address is where the agent listens.
type address struct {
	text, network, target, host string
}

func parseAddress(text string) (address, error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok && filepath.IsAbs(path) {
		return address{text, "unix", path, "slotkeeper"}, nil
	}
	parsed, err := url.Parse(text)
	if err != nil || parsed.Scheme != "http" || parsed.User != nil || !isLoopback(parsed.Hostname()) || !isPort(parsed.Port()) ||
		strings.Trim(parsed.Path, "/") != "" || parsed.RawQuery != "" || parsed.Fragment != "" {
		return address{}, fmt.Errorf(
			"slotkeeper: %q is not the address of an agent on this machine: write unix:/path/of/the.sock or http://127.0.0.1:port", text)
	}
	return address{text, "tcp", parsed.Host, parsed.Host}, nil
}

// isLoopback reports whether a host is this machine. The token would reach another one in clear.
func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

func isPort(text string) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return err == nil && port > 0
}

// exchange is one request on a connection of its own: the agent serves one request per connection.
type exchange struct {
	client       *Client
	method, path string
	body         []byte

	guard      sync.Mutex
	connection net.Conn
}

// request is an exchange without a body.
func (c *Client) request(method, path string) *exchange {
	return &exchange{client: c, method: method, path: path}
}

// run sends the request and decodes the answer into content, unless that is nil.
func (e *exchange) run(ctx context.Context, content any) error {
	body, err := e.roundTrip(ctx)
	if err != nil || content == nil {
		return err
	}
	if err := json.Unmarshal(body, content); err != nil {
		return fmt.Errorf("%w: %s %s at %s answered with unexpected content: %w", ErrUnavailable, e.method, e.path, e.client.address.text, err)
	}
	return nil
}

// withdraw tells the agent that nobody waits for the answer. An answer that is on its way still arrives. It returns false if
// there is no connection yet.
func (e *exchange) withdraw() bool {
	e.guard.Lock()
	defer e.guard.Unlock()
	half, ok := e.connection.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

func (e *exchange) roundTrip(ctx context.Context) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, e.method, "http://"+e.client.address.host+e.path, bytes.NewReader(e.body))
	if err != nil {
		return nil, fmt.Errorf("slotkeeper: %w", err)
	}
	if e.body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if e.client.tokenFile != "" {
		token, err := e.client.token(ctx)
		if err != nil {
			return nil, e.unavailable(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{
		DialContext: e.dial, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeaderBytes,
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, e.unavailable(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes+1))
	if err != nil {
		return nil, e.unavailable(err)
	}
	if len(body) > maxAnswerBytes {
		return nil, e.unavailable(fmt.Errorf("its answer has more than %d bytes", maxAnswerBytes))
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return nil, refusal(response.StatusCode, body)
	}
	return body, nil
}

func (e *exchange) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, e.client.address.network, e.client.address.target)
	if err != nil {
		return nil, err
	}
	e.guard.Lock()
	defer e.guard.Unlock()
	e.connection = connection
	return connection, nil
}

func (e *exchange) unavailable(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer in time: %w", err)
	}
	return fmt.Errorf("%w: %s %s at %s: %w", ErrUnavailable, e.method, e.path, e.client.address.text, err)
}

// refusal is the error of an answer with that status.
func refusal(status int, body []byte) error {
	var content struct{ Error, Code string }
	if json.Unmarshal(body, &content) != nil || content.Error == "" {
		return &RefusedError{Status: status, Message: "the agent refused the request"}
	}
	return &RefusedError{Status: status, Code: content.Code, Message: content.Error}
}

// token reads the token for each request: the file may have changed. A read that hangs, as on a network's file system, does not
// outlast ctx. Others start when it has ended, so that a client has one of them at most.
func (c *Client) token(ctx context.Context) (string, error) {
	select {
	case c.reading <- struct{}{}:
	case <-ctx.Done():
		return "", fmt.Errorf("token file %s: %w", c.tokenFile, ctx.Err())
	}
	type content struct {
		token string
		err   error
	}
	read := make(chan content, 1)
	go func() {
		token, err := readToken(c.tokenFile)
		<-c.reading
		read <- content{token, err}
	}()
	select {
	case content := <-read:
		return content.token, content.err
	case <-ctx.Done():
		return "", fmt.Errorf("token file %s: %w", c.tokenFile, ctx.Err())
	}
}

func readToken(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxTokenBytes+1))
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSpace(string(content))
	invisible := func(r rune) bool { return r < '!' || r > '~' }
	if token == "" || len(content) > maxTokenBytes || strings.ContainsFunc(token, invisible) {
		return "", fmt.Errorf("token file %s must have one token of visible ASCII characters", path)
	}
	return token, nil
}
