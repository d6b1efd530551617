/* SPDX-License-Identifier: BSD-3-Clause */
#include "inventory/json_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int inventory_get_text(const json_t *object, const char *key, size_t max, const char **out,
		       struct error *err)
{
	int rc = json_get_string(INVENTORY_NAME, object, key, out, err);

	if (!rc && strlen(*out) > max)
		return error_set(err, ERR_DATA,
				 INVENTORY_NAME ": \"%s\" has %zu bytes, expected at most %zu", key,
				 strlen(*out), max);
	return rc;
}

int inventory_copy_text(char *out, size_t size, const json_t *object, const char *key,
			struct error *err)
{
	const char *text;
	int rc = inventory_get_text(object, key, size - 1, &text, err);

	if (!rc)
		snprintf(out, size, "%s", text);
	return rc;
}

int inventory_dup_text(char **out, const json_t *object, const char *key, bool needed,
		       struct error *err)
{
	const char *text;

	if (!needed && !json_object_get(object, key))
		return 0;

	int rc = inventory_get_text(object, key, MAX_TEXT, &text, err);

	if (rc)
		return rc;
	*out = strdup(text);
	return *out ? 0 : error_memory(err, INVENTORY_NAME);
}

int inventory_get_number(const json_t *object, const char *key, int min, int max, int *out,
			 struct error *err)
{
	int64_t value;
	int rc = json_get_int(INVENTORY_NAME, object, key, min, max, &value, err);

	if (!rc)
		*out = (int)value;
	return rc;
}

int inventory_get_flag(const json_t *object, const char *key, bool *out, struct error *err)
{
	int value;
	int rc = json_get_bool(INVENTORY_NAME, object, key, &value, err);

	if (!rc)
		*out = value;
	return rc;
}

int inventory_parse_set(const char *text, struct idset **out, struct error *err)
{
	struct idset *set = NULL;
	int rc = idset_parse(text, &set, err);

	if (rc)
		return rc == -ERR_DATA ? error_prefix(err, INVENTORY_NAME) : rc;
	if (idset_next(set, MAX_CPU) >= 0) {
		idset_free(set);
		return error_set(err, ERR_DATA, INVENTORY_NAME ": an id over %d in \"%.80s\"",
				 MAX_CPU, text);
	}
	*out = set;
	return 0;
}

int inventory_get_set(const json_t *object, const char *key, struct idset **out, struct error *err)
{
	const char *text;
	int rc = json_get_string(INVENTORY_NAME, object, key, &text, err);

	return rc ? rc : inventory_parse_set(text, out, err);
}

int inventory_get_list(const json_t *object, const char *key, size_t max, json_t **out,
		       struct error *err)
{
	int rc = json_get_array(INVENTORY_NAME, object, key, out, err);

	if (!rc && json_array_size(*out) > max)
		return error_set(err, ERR_DATA,
				 INVENTORY_NAME ": %zu entries in \"%s\", expected at most %zu",
				 json_array_size(*out), key, max);
	return rc;
}

int inventory_bad_row(const char *key, size_t row, const char *expected, struct error *err)
{
	return error_set(err, ERR_DATA,
			 INVENTORY_NAME ": entry %zu of \"%s\" is malformed; expected %s", row, key,
			 expected);
}

int inventory_parse_kind(const char *name, enum nic_kind *out)
{
	for (int k = NIC_ETHERNET; k <= NIC_INFINIBAND; k++)
		if (strcmp(nic_kind_name((enum nic_kind)k), name) == 0) {
			*out = (enum nic_kind)k;
			return 0;
		}
	return -1;
}
