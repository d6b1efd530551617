/* SPDX-License-Identifier: BSD-3-Clause */
#include "inventory/json_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int card_get_text(const json_t *object, const char *key, size_t max, const char **out,
		  struct error *err)
{
	int rc = json_get_string(CARD, object, key, out, err);

	if (!rc && strlen(*out) > max)
		return error_set(err, ERR_DATA, CARD ": \"%s\" has %zu bytes, expected at most %zu",
				 key, strlen(*out), max);
	return rc;
}

int card_copy_text(char *out, size_t size, const json_t *object, const char *key, struct error *err)
{
	const char *text;
	int rc = card_get_text(object, key, size - 1, &text, err);

	if (!rc)
		snprintf(out, size, "%s", text);
	return rc;
}

int card_dup_text(char **out, const json_t *object, const char *key, bool needed, struct error *err)
{
	const char *text;

	if (!needed && !json_object_get(object, key))
		return 0;

	int rc = card_get_text(object, key, MAX_TEXT, &text, err);

	if (rc)
		return rc;
	*out = strdup(text);
	return *out ? 0 : error_memory(err, CARD);
}

int card_get_number(const json_t *object, const char *key, int min, int max, int *out,
		    struct error *err)
{
	int64_t value;
	int rc = json_get_int(CARD, object, key, min, max, &value, err);

	if (!rc)
		*out = (int)value;
	return rc;
}

int card_get_flag(const json_t *object, const char *key, bool *out, struct error *err)
{
	int value;
	int rc = json_get_bool(CARD, object, key, &value, err);

	if (!rc)
		*out = value;
	return rc;
}

int card_parse_set(const char *text, struct idset **out, struct error *err)
{
	struct idset *set = NULL;
	int rc = idset_parse(text, &set, err);

	if (rc)
		return rc == -ERR_DATA ? error_prefix(err, CARD) : rc;
	if (idset_next(set, MAX_CPU) >= 0) {
		idset_free(set);
		return error_set(err, ERR_DATA, CARD ": an id over %d in \"%.80s\"", MAX_CPU, text);
	}
	*out = set;
	return 0;
}

int card_get_set(const json_t *object, const char *key, struct idset **out, struct error *err)
{
	const char *text;
	int rc = json_get_string(CARD, object, key, &text, err);

	return rc ? rc : card_parse_set(text, out, err);
}

int card_get_list(const json_t *object, const char *key, size_t max, json_t **out,
		  struct error *err)
{
	int rc = json_get_array(CARD, object, key, out, err);

	if (!rc && json_array_size(*out) > max)
		return error_set(err, ERR_DATA,
				 CARD ": %zu entries in \"%s\", expected at most %zu",
				 json_array_size(*out), key, max);
	return rc;
}

int card_bad_row(const char *key, size_t row, const char *expected, struct error *err)
{
	return error_set(err, ERR_DATA, CARD ": entry %zu of \"%s\" is malformed; expected %s", row,
			 key, expected);
}

int card_parse_kind(const char *name, enum nic_kind *out)
{
	for (int k = NIC_ETHERNET; k <= NIC_INFINIBAND; k++)
		if (strcmp(nic_kind_name((enum nic_kind)k), name) == 0) {
			*out = (enum nic_kind)k;
			return 0;
		}
	return -1;
}
