/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/crc32c.h"

#include <pthread.h>

/* Eight bytes at a time ("slicing by 8"): table[k][b] is byte b followed by k zero bytes. */
static uint32_t table[8][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void table_fill(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t crc = b;

		for (int bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
		table[0][b] = crc;
	}
	for (int k = 1; k < 8; k++)
		for (int b = 0; b < 256; b++)
			table[k][b] = (table[k - 1][b] >> 8) ^ table[0][table[k - 1][b] & 255];
}

uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
	const unsigned char *p = data;

	pthread_once(&table_once, table_fill);
	crc = ~crc;
	for (; size >= 8; size -= 8, p += 8) {
		uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
				      (uint32_t)p[3] << 24);

		crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^
		      table[4][low >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
		      table[0][p[7]];
	}
	for (; size; size--, p++)
		crc = (crc >> 8) ^ table[0][(crc ^ *p) & 255];
	return ~crc;
}
