package slotkeeper

import (
	"syscall"
	"time"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME, which continues while the machine is suspended.
const clockBoottime = 7

// now is the time since boot. Nobody can set this clock.
func now() time.Duration {
	var at syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&at)), 0)
	if errno != 0 {
		panic("slotkeeper: CLOCK_BOOTTIME cannot be read: " + errno.Error())
	}
	return time.Duration(at.Nano())
}
