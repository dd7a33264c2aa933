package agenttest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheProgramOfTheReadmeRuns(t *testing.T) {
	t.Parallel()
	agent := startAgent(t, startConsul(t))
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "\n```go\n")
	program, _, _ := strings.Cut(rest, "```\n")
	const address = "unix:/run/slotkeeper/control.sock"
	if strings.Count(program, address) != 1 {
		t.Fatalf("the program has not one address %s: %s", address, program)
	}
	program = strings.Replace(program, address, "unix:"+agent.socket, 1)

	// In a folder of this module, which has the client.
	folder, err := os.MkdirTemp(".", "readme-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	source := filepath.Join(folder, "main.go")
	write(t, source, program)
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	output, err := exec.CommandContext(ctx, "go", "run", source).CombinedOutput()
	expected := "part 0 with a token of true\npart 1 with a token of true\npart 2 with a token of true\n"
	if err != nil || string(output) != expected {
		t.Errorf("%v: %s", err, output)
	}
	if formatted, err := exec.CommandContext(ctx, "gofmt", "-l", source).CombinedOutput(); err != nil || len(formatted) > 0 {
		t.Errorf("gofmt: %v: %s", err, formatted)
	}
}
