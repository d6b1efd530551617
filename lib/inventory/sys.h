/* SPDX-License-Identifier: BSD-3-Clause */
/* Small reads below /sys, or below a folder that a test pretends is one. */
#ifndef BERTH_INVENTORY_SYS_H
#define BERTH_INVENTORY_SYS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "inventory/inventory_internal.h"

struct dirent;

/* The first line of the file whose path the format makes, cut at size. 0, or -1 when it cannot
 * be read (out untouched). */
int sys_text(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The number in it (0x... too), or otherwise. */
long sys_number(long otherwise, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool sys_has(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The folder's entries by name; 0 when there is no such folder, -1 when memory is out.
 * sys_list_free frees them (NULL is fine). */
int sys_list(const char *path, struct dirent ***out);
void sys_list_free(struct dirent **list, int count);

/* Mb/s of the link, -1 unknown. */
int64_t sys_net_speed(const char *sys_root, const char *name);

#endif
