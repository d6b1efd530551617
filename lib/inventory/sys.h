/* SPDX-License-Identifier: BSD-3-Clause */
/* Small reads below /sys, or below a directory that a test uses in its place. */
#ifndef BERTH_INVENTORY_SYS_H
#define BERTH_INVENTORY_SYS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "inventory/inventory_internal.h"

struct dirent;

/* Read the first line of the file whose path format yields, cut to size. Return 0, or -1 if it
 * cannot be read (out is untouched). */
int sys_text(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The number in that file (0x... is allowed), or otherwise if there is none. */
long sys_number(long otherwise, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool sys_has(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* List a directory by name. Return 0 if there is no such directory, -1 if memory is out. The caller
 * frees the list with sys_list_free, which accepts NULL. */
int sys_list(const char *path, struct dirent ***out);
void sys_list_free(struct dirent **list, int count);

/* The link speed in Mb/s; -1 if unknown. */
int64_t sys_net_speed(const char *sys_root, const char *name);

#endif
