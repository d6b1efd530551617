/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files that read a card share; nobody else includes this. All texts, numbers and sets are
 * checked against the limits below; -ERR_DATA names the member. */
#ifndef BERTH_INVENTORY_JSON_READ_H
#define BERTH_INVENTORY_JSON_READ_H

#include "base/json.h"
#include "inventory/inventory.h"

#define MAX_CORES 8192
#define MAX_CPU 16383 /* with MAX_CORES bounds what a hostile card's sets can take */
#define MAX_NUMAS 1024
#define MAX_PACKAGES 1024
#define MAX_GPUS 1024
#define MAX_NICS 1024
#define MAX_ADDRESSES 4096
#define MAX_NOTES 256
#define MAX_TEXT 4096

#define INVENTORY_NAME "a node's card" /* its name in errors */

/* ---- json_values.c: members of an object ---- */

/* Borrowed, at most max bytes. */
int inventory_get_text(const json_t *object, const char *key, size_t max, const char **out,
		       struct error *err);
/* Into an array of size bytes. */
int inventory_copy_text(char *out, size_t size, const json_t *object, const char *key,
			struct error *err);
/* malloced; unless it is needed it may be absent (*out stays). */
int inventory_dup_text(char **out, const json_t *object, const char *key, bool needed,
		       struct error *err);
int inventory_get_number(const json_t *object, const char *key, int min, int max, int *out,
			 struct error *err);
int inventory_get_flag(const json_t *object, const char *key, bool *out, struct error *err);
/* A new set from "0-3,8". */
int inventory_parse_set(const char *text, struct idset **out, struct error *err);
int inventory_get_set(const json_t *object, const char *key, struct idset **out, struct error *err);
/* An array of at most max entries; borrowed. */
int inventory_get_list(const json_t *object, const char *key, size_t max, json_t **out,
		       struct error *err);
/* -ERR_DATA: entry row of the list key is not what was expected. */
int inventory_bad_row(const char *key, size_t row, const char *expected, struct error *err);

/* nic_kind_name's word. 0 or -1. */
int inventory_parse_kind(const char *name, enum nic_kind *out);

/* ---- json_devices.c: the lists "gpus" and "nics" into machine; package_count is known ---- */

int inventory_gpus_from_json(const json_t *json, struct inventory *inventory, struct error *err);
int inventory_nics_from_json(const json_t *json, struct inventory *inventory, struct error *err);

#endif
