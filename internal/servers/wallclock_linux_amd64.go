package servers

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A WallClock is the wall clock of one process. A test can move it while the process runs, without
// moving its monotonic clock.
//
// Preloading a library does not work for programs in Go. They do not read the clock by libc, but by
// the vDSO, the code that the kernel maps into each process. So that code is replaced before the
// process runs its first instruction. The program itself is unchanged.
type WallClock struct {
	memory *os.File
	data   int64 // address of the code's offsets

	mu   sync.Mutex
	used byte // guarded by mu; the offset in use
}

// movedClock is clock_gettime, in 32 bytes. Its data follow: the index of the offset in use, and
// two offsets in seconds. Changing the index changes one byte, so nobody reads half an offset.
var movedClock = []byte{
	0xb8, 0xe4, 0x00, 0x00, 0x00, // mov  eax, SYS_clock_gettime
	0x0f, 0x05, //                   syscall
	0x85, 0xff, //                   test edi, edi (CLOCK_REALTIME)
	0x75, 0x12, //                   jne  ret
	0x48, 0x8d, 0x15, 0x0e, 0x00, 0x00, 0x00, // lea rdx, [data]
	0x0f, 0xb6, 0x0a, //             movzx ecx, byte [rdx]
	0x48, 0x8b, 0x4c, 0xca, 0x08, // mov  rcx, [rdx+8*rcx+8]
	0x48, 0x01, 0x0e, //             add  [rsi], rcx
	0xc3, 0xcc, //                   ret
	0, 0, 0, 0, 0, 0, 0, 0,
	0, 0, 0, 0, 0, 0, 0, 0,
	0, 0, 0, 0, 0, 0, 0, 0,
}

const movedClockData = 32

// StartWithClock is like Start, for a process whose wall clock starts right.
func StartWithClock(cmd *exec.Cmd) (c *WallClock, ended <-chan error, err error) {
	cmd.SysProcAttr = mortal()
	cmd.SysProcAttr.Ptrace = true // it stops after exec
	ended, err = startThen(cmd, func() (err error) {
		c, err = replaceClock(cmd.Process.Pid)
		return err
	})
	return c, ended, err
}

// replaceClock is called on the thread that has started the process.
func replaceClock(pid int) (c *WallClock, err error) {
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
		return nil, fmt.Errorf("wait for the process to stand: %v, status %x", err, status)
	}
	if c, err = newWallClock(pid); err != nil {
		return nil, err
	}
	return c, syscall.PtraceDetach(pid)
}

func newWallClock(pid int) (*WallClock, error) {
	from, to, err := vdso(pid)
	if err != nil {
		return nil, err
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	at, err := clockIn(memory, from, to)
	if err == nil {
		_, err = memory.WriteAt(movedClock, at)
	}
	if err != nil {
		memory.Close()
		return nil, err
	}
	return &WallClock{memory: memory, data: at + movedClockData}, nil
}

// vdso returns where the kernel's code is in the process.
func vdso(pid int) (from, to int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		if strings.HasSuffix(lines.Text(), "[vdso]") {
			_, err = fmt.Sscanf(lines.Text(), "%x-%x", &from, &to)
			return from, to, err
		}
	}
	return 0, 0, fmt.Errorf("process %d has no vDSO", pid)
}

// clockIn finds clock_gettime.
func clockIn(memory *os.File, from, to int64) (at int64, err error) {
	image := make([]byte, to-from)
	if _, err := memory.ReadAt(image, from); err != nil {
		return 0, err
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, err
	}
	symbols, err := file.DynamicSymbols()
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" && s.Size >= uint64(len(movedClock)) && s.Value%8 == 0 {
			return from + int64(s.Value), nil
		}
	}
	return 0, fmt.Errorf("the vDSO has no clock that can be replaced: %v", err)
}

// Set moves the clock ahead of the right time by an offset in whole seconds, which may be negative.
// It applies from the process's next reading on.
func (c *WallClock) Set(offset time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := 1 - c.used
	seconds := binary.LittleEndian.AppendUint64(nil, uint64(int64(offset/time.Second)))
	_, err := c.memory.WriteAt(seconds, c.data+8+8*int64(next))
	if err == nil {
		_, err = c.memory.WriteAt([]byte{next}, c.data)
	}
	if err == nil {
		c.used = next
	}
	return err
}

// Close releases the process's memory.
func (c *WallClock) Close() error { return c.memory.Close() }
