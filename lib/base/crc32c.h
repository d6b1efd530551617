/* SPDX-License-Identifier: BSD-3-Clause */
/* CRC-32C (Castagnoli, reflected 0x82F63B78): "123456789" gives e3069283. */
#ifndef BERTH_BASE_CRC32C_H
#define BERTH_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continue the checksum crc (0 at first) over size bytes of data. */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);

#endif
