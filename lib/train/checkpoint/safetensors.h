/* SPDX-License-Identifier: BSD-3-Clause */
/* safetensors files: a JSON header with the position of each tensor, then the tensors. */
#ifndef BERTH_TRAIN_CHECKPOINT_SAFETENSORS_H
#define BERTH_TRAIN_CHECKPOINT_SAFETENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct lease;

#define SAFETENSORS_MAX_HEADER ((size_t)100 << 20) /* the format's own limit */
#define SAFETENSORS_MAX_TENSORS 100000
#define SAFETENSORS_MAX_RANK 8

/* data is host memory, little endian, row-major. */
struct safetensor {
	const char *name;
	const char *type; /* "F32", "I64" ... */
	int rank;
	int64_t shape[SAFETENSORS_MAX_RANK];
	const void *data;
	size_t size_bytes;
	size_t offset; /* of a tensor that was read: within the file's data */
};

/* A file that was read. Tensors are in the order of their data; names, types and data point into
 * it. */
struct safetensors {
	size_t count;
	struct safetensor *tensors;
	json_t *metadata; /* an object of strings; empty if the file has none */
	json_t *header;
	char *file; /* if it owns the bytes */
};
void safetensors_free(struct safetensors *file); /* clears it; NULL is fine */
const struct safetensor *safetensors_find(const struct safetensors *file, const char *name);

/* Check and index size bytes, which stay borrowed. It checks the header's length and JSON, that
 * names are unique, types and shapes against offsets, that there is no hole or overlap, and the
 * file's length. A file with berth.* metadata must have a correct berth.header_crc32c, and a
 * correct berth.crc32c.NAME for each tensor. err calls the file by name. Return 0, -ERR_DATA, or
 * -ERR_UNAVAILABLE if memory is out. */
int safetensors_parse(const char *name, const void *bytes, size_t size, struct safetensors *out,
		      struct error *err);
/* The same from a file: -ERR_INPUT if it cannot be read. */
int safetensors_read(const char *path, struct safetensors *out, struct error *err);
/* The same, but read the header alone: every check except the tensors' checksums; their data are
 * NULL. */
int safetensors_read_header(const char *path, struct safetensors *out, struct error *err);

/* Write tensors with metadata (strings; NULL: none), adding berth.crc32c.* and berth.header_crc32c.
 * Writes a temporary file and puts it in its place (lease_commit). Return 0, -ERR_OUTPUT if it
 * cannot be created, or lease_commit's error. Then the old file at path stays. */
int safetensors_write(const char *path, const struct safetensor *tensors, size_t count,
		      const json_t *metadata, struct lease *lease, struct error *err);

#endif
