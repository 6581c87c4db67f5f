package redislock

import (
	"strconv"
	"strings"
	"sync"
)

// slots is how many hash slots a Redis Cluster has. Source: the cluster specification.
const slots = 16384

// slot returns the hash slot of key.
func slot(key string) int {
	if tag := hashTag(key); tag != "" {
		key = tag
	}
	return int(crc16(key) % slots)
}

// hashTag returns the part of key between its first { and the first } after it. If that is not
// empty, Redis hashes it in place of the whole key.
func hashTag(key string) string {
	_, after, _ := strings.Cut(key, "{")
	tag, _, ok := strings.Cut(after, "}")
	if !ok {
		return ""
	}
	return tag
}

// tagFor returns a hash tag that puts a key into the slot of key. If it can, it returns a readable
// one: the tag of key, or all of key. A key that has a } but no tag cannot be put into braces, so
// it returns a short tag of the same slot.
func tagFor(key string) string {
	if tag := hashTag(key); tag != "" {
		return tag
	}
	if !strings.Contains(key, "}") {
		return key
	}
	return slotTag(slot(key))
}

// slotTag returns a short tag that hashes to slot.
func slotTag(slot int) string { return slotTags()[slot] }

// slotTags returns for each slot the first number that hashes to it, written in base 36. Finding
// them takes some milliseconds, once, and only if they are needed.
var slotTags = sync.OnceValue(func() *[slots]string {
	var tags [slots]string
	for n, left := uint64(0), slots; left > 0; n++ {
		tag := strconv.FormatUint(n, 36)
		if at := &tags[crc16(tag)%slots]; *at == "" {
			*at = tag
			left--
		}
	}
	return &tags
})

// crcTable is the table of CRC-16/XMODEM. Source: the cluster specification.
var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

func crc16(s string) (crc uint16) {
	for i := range len(s) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^s[i]]
	}
	return crc
}
