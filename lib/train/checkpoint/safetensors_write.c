/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "train/checkpoint/lease.h"
#include "train/checkpoint/safetensors.h"

/* The header as text, padded with spaces to a multiple of 8, with its own checksum filled in.
 * malloced. */
static char *header_text(json_t *header, size_t *size)
{
	static const char mark[] = "\"berth.header_crc32c\":\"";
	char *text = json_dumps(header, JSON_COMPACT), *padded, *at;

	if (!text)
		return NULL;
	*size = (strlen(text) + 7) / 8 * 8;
	padded = malloc(*size + 1);
	if (padded) {
		memset(padded, ' ', *size);
		padded[*size] = 0;
		memcpy(padded, text, strlen(text));
		at = strstr(padded, mark);
		if (at) {
			char digits[16];

			snprintf(digits, sizeof digits, "%08x", crc32c(0, padded, *size));
			memcpy(at + sizeof mark - 1, digits, 8);
		}
	}
	free(text);
	return padded;
}

static int add_entry(json_t *header, json_t *metadata, const struct safetensor *tensor,
		     size_t offset)
{
	char key[512], digits[16];
	json_t *shape = json_array(), *entry;
	int rc = shape ? 0 : -1;

	for (int i = 0; !rc && i < tensor->rank; i++)
		rc = json_array_append_new(shape, json_integer(tensor->shape[i]));
	entry = json_pack("{s:s,s:o,s:[I,I]}", "dtype", tensor->type, "shape", shape,
			  "data_offsets", (json_int_t)offset,
			  (json_int_t)offset + (json_int_t)tensor->size_bytes);
	snprintf(key, sizeof key, "berth.crc32c.%s", tensor->name);
	snprintf(digits, sizeof digits, "%08x", crc32c(0, tensor->data, tensor->size_bytes));
	if (json_object_set_new(header, tensor->name, entry))
		rc = -1;
	if (json_object_set_new(metadata, key, json_string(digits)))
		rc = -1;
	return rc;
}

static char *make_header(const struct safetensor *tensors, size_t count, const json_t *metadata,
			 size_t *size)
{
	json_t *header = json_object(), *own = json_object();
	size_t offset = 0;
	char *text = NULL;
	int rc = header && own ? 0 : -1;

	/* The header's checksum comes first: no name can precede it. */
	if (!rc)
		rc = json_object_set_new(own, "berth.header_crc32c", json_string("00000000"));
	if (!rc && metadata)
		rc = json_object_update(own, (json_t *)metadata);
	if (!rc)
		rc = json_object_set(header, "__metadata__", own);
	for (size_t i = 0; !rc && i < count; i++) {
		rc = add_entry(header, own, &tensors[i], offset);
		offset += tensors[i].size_bytes;
	}
	if (!rc)
		text = header_text(header, size);
	json_decref(header);
	json_decref(own);
	return text;
}

static int write_parts(int fd, const char *header, size_t header_size,
		       const struct safetensor *tensors, size_t count)
{
	unsigned char length[8];
	int rc;

	bytes_put_u64(length, header_size);
	rc = file_write_all(fd, length, sizeof length);
	if (!rc)
		rc = file_write_all(fd, header, header_size);
	for (size_t i = 0; !rc && i < count; i++)
		rc = file_write_all(fd, tensors[i].data, tensors[i].size_bytes);
	return rc;
}

int safetensors_write(const char *path, const struct safetensor *tensors, size_t count,
		      const json_t *metadata, struct lease *lease, struct error *err)
{
	size_t header_size = 0;
	char *header = make_header(tensors, count, metadata, &header_size), *aside = NULL;
	int fd, rc = 0;

	if (!header)
		return error_memory(err, "a checkpoint");
	fd = file_create_temp(path, 0666, &aside);
	if (fd < 0)
		rc = error_set(err, ERR_OUTPUT, "cannot create %s: %s", path, strerror(errno));
	else
		rc = lease_commit(lease, fd, write_parts(fd, header, header_size, tensors, count),
				  aside, path, err);
	free(header);
	free(aside);
	return rc;
}
