/* SPDX-License-Identifier: BSD-3-Clause */
/* safetensors files: a JSON header that says where each tensor lies, then the tensors. */
#ifndef BERTH_TRAIN_CHECKPOINT_SAFETENSORS_H
#define BERTH_TRAIN_CHECKPOINT_SAFETENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SAFETENSORS_MAX_HEADER ((size_t)100 << 20) /* the format's own limit */
#define SAFETENSORS_MAX_TENSORS 100000
#define SAFETENSORS_MAX_RANK 8

/* data: host memory, little endian, row-major. */
struct safetensor {
	const char *name;
	const char *type; /* "F32", "I64" ... */
	int rank;
	int64_t shape[SAFETENSORS_MAX_RANK];
	const void *data;
	size_t size_bytes;
};

/* A file read: tensors in the order of their data; names, types and data point into it. */
struct safetensors {
	size_t count;
	struct safetensor *tensors;
	json_t *metadata; /* an object of strings; empty when the file has none */
	json_t *header;
	char *file; /* when it owns the bytes */
};
void safetensors_free(struct safetensors *file); /* clears it; NULL is fine */
const struct safetensor *safetensors_find(const struct safetensors *file, const char *name);

/* Check and index size bytes, borrowed. Everything is checked: the header's length and JSON, names
 * once, types and shapes against offsets, no hole, no overlap, the file's length. A file with
 * berth.* metadata must have berth.header_crc32c, match it and each berth.crc32c.NAME, and have
 * one of these for each tensor.
 * name is for err. -ERR_DATA; -ERR_UNAVAILABLE: memory. */
int safetensors_parse(const char *name, const void *bytes, size_t size, struct safetensors *out,
		      struct error *err);
/* The same from a file: -ERR_INPUT when it cannot be read. */
int safetensors_read(const char *path, struct safetensors *out, struct error *err);

/* Write tensors with metadata (strings, NULL: none; berth.crc32c.* and berth.header_crc32c are
 * added) aside, fsync, rename over path, fsync the folder. -ERR_OUTPUT when it cannot be created,
 * -ERR_IO when writing failed: what was at path stays, nothing half written stays. */
int safetensors_write(const char *path, const struct safetensor *tensors, size_t count,
		      const json_t *metadata, struct error *err);

#endif
