//go:build !linux

package slotkeeper

import "time"

var started = time.Now()

// now is the time since this program started. Whether the clock continues while the machine is suspended depends on the
// system.
func now() time.Duration {
	return time.Since(started)
}
