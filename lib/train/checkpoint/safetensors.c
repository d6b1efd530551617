/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/json.h"

#define MAX_FILE ((size_t)1 << 40)
static const char header_mark[] = "\"berth.header_crc32c\":\"";

void safetensors_free(struct safetensors *file)
{
	if (!file)
		return;
	free(file->tensors);
	json_decref(file->metadata);
	json_decref(file->header);
	free(file->file);
	memset(file, 0, sizeof *file);
}

const struct safetensor *safetensors_find(const struct safetensors *file, const char *name)
{
	for (size_t i = 0; i < file->count; i++)
		if (!strcmp(file->tensors[i].name, name))
			return &file->tensors[i];
	return NULL;
}

/* ---- checks ---- */

static size_t type_size(const char *type)
{
	static const struct {
		const char *name;
		size_t size;
	} types[] = {{"F64", 8}, {"I64", 8}, {"U64", 8},  {"F32", 4}, {"I32", 4},
		     {"U32", 4}, {"F16", 2}, {"BF16", 2}, {"I16", 2}, {"U16", 2},
		     {"I8", 1},	 {"U8", 1},  {"BOOL", 1}};

	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (!strcmp(types[i].name, type))
			return types[i].size;
	return 0;
}

/* Read one entry of the header: shape, type and place of a tensor within data_size bytes. */
static int read_entry(const char *file, const char *name, const json_t *entry, size_t data_size,
		      struct safetensor *out, struct error *err)
{
	const json_t *type = json_object_get(entry, "dtype"),
		     *shape = json_object_get(entry, "shape"),
		     *offsets = json_object_get(entry, "data_offsets");
	json_int_t begin, end;
	uint64_t bytes;

	if (!json_is_string(type) || !json_is_array(shape) || !json_is_array(offsets) ||
	    json_array_size(offsets) != 2 || json_array_size(shape) > SAFETENSORS_MAX_RANK)
		return error_set(err, ERR_DATA,
				 "%s: tensor %.64s lacks dtype, shape or data_offsets", file, name);
	*out = (struct safetensor){
		.name = name, .type = json_string_value(type), .rank = (int)json_array_size(shape)};
	bytes = type_size(out->type);
	if (!bytes)
		return error_set(err, ERR_DATA, "%s: tensor %.64s has the unknown dtype %.16s",
				 file, name, out->type);
	for (int i = 0; i < out->rank; i++) {
		const json_t *side = json_array_get(shape, (size_t)i);
		json_int_t n = json_integer_value(side);

		if (!json_is_integer(side) || n < 0 || (n && bytes > MAX_FILE / (uint64_t)n))
			return error_set(err, ERR_DATA, "%s: tensor %.64s has an invalid shape",
					 file, name);
		out->shape[i] = n;
		bytes *= (uint64_t)n;
	}
	begin = json_integer_value(json_array_get(offsets, 0));
	end = json_integer_value(json_array_get(offsets, 1));
	if (!json_is_integer(json_array_get(offsets, 0)) ||
	    !json_is_integer(json_array_get(offsets, 1)) || begin < 0 || end < begin ||
	    (uint64_t)end > data_size || (uint64_t)(end - begin) != bytes)
		return error_set(
			err, ERR_DATA,
			"%s: tensor %.64s is at bytes %lld to %lld of %zu, which does not match "
			"its shape or the file's size: the file is damaged or truncated",
			file, name, (long long)begin, (long long)end, data_size);
	out->offset = (size_t)begin;
	out->size_bytes = (size_t)bytes;
	return 0;
}

static int by_offset(const void *a, const void *b)
{
	const struct safetensor *left = a, *right = b;

	if (left->offset != right->offset)
		return left->offset < right->offset ? -1 : 1;
	return left->size_bytes < right->size_bytes ? -1 : left->size_bytes > right->size_bytes;
}

static int read_entries(const char *name, struct safetensors *file, size_t data_size,
			struct error *err)
{
	size_t count = json_object_size(file->header), next = 0;
	const char *key;
	json_t *entry;

	if (count > SAFETENSORS_MAX_TENSORS)
		return error_set(err, ERR_DATA, "%s: %zu tensors exceed the limit of %d", name,
				 count, SAFETENSORS_MAX_TENSORS);
	file->tensors = calloc(count + 1, sizeof *file->tensors);
	if (!file->tensors)
		return error_memory(err, name);
	json_object_foreach(file->header, key, entry)
	{
		if (!strcmp(key, "__metadata__"))
			continue;

		int rc = read_entry(name, key, entry, data_size, &file->tensors[file->count], err);

		if (rc)
			return rc;
		file->count++;
	}
	qsort(file->tensors, file->count, sizeof *file->tensors, by_offset);
	for (size_t i = 0; i < file->count; i++) {
		if (file->tensors[i].offset != next)
			return error_set(err, ERR_DATA,
					 "%s: tensor %.64s overlaps another, or a gap precedes it",
					 name, file->tensors[i].name);
		next += file->tensors[i].size_bytes;
	}
	if (next != data_size)
		return error_set(err, ERR_DATA, "%s: %zu excess bytes at the end", name,
				 data_size - next);
	return 0;
}

static int read_metadata(const char *name, struct safetensors *file, struct error *err)
{
	json_t *metadata = json_object_get(file->header, "__metadata__"), *value;
	const char *key;

	file->metadata = metadata ? json_incref(metadata) : json_object();
	if (!file->metadata)
		return error_memory(err, name);
	if (!json_is_object(file->metadata))
		return error_set(err, ERR_DATA, "%s: __metadata__ is not an object", name);
	json_object_foreach(file->metadata, key, value)
	{
		if (!json_is_string(value))
			return error_set(err, ERR_DATA, "%s: __metadata__ %.64s is not a string",
					 name, key);
	}
	return 0;
}

/* The checksum of header with its own digits, at position at, as zeros. */
static uint32_t header_sum(const char *header, size_t size, size_t at)
{
	uint32_t crc = crc32c(0, header, at);

	crc = crc32c(crc, "00000000", 8);
	return crc32c(crc, header + at + 8, size - at - 8);
}

/* A file without a checksum is not one of ours, and there is nothing to compare. Otherwise the
 * damage is in the very name of the checksum. */
static int check_foreign(const char *name, const struct safetensors *file, struct error *err)
{
	const char *key;
	json_t *value;

	json_object_foreach(file->metadata, key, value)
	{
		if (!strncmp(key, "berth.", 6))
			return error_set(err, ERR_DATA,
					 "%s: __metadata__ has %.64s but lacks "
					 "berth.header_crc32c: the file is damaged",
					 name, key);
	}
	return 0;
}

static int check_header_sum(const char *name, const struct safetensors *file, const char *header,
			    size_t header_size, struct error *err)
{
	const char *want =
		json_string_value(json_object_get(file->metadata, "berth.header_crc32c"));
	const char *mark =
		want ? memmem(header, header_size, header_mark, sizeof header_mark - 1) : NULL;
	char seen[16];

	if (!want)
		return check_foreign(name, file, err);
	if (!mark || (size_t)(header + header_size - mark) < sizeof header_mark - 1 + 8)
		return error_set(
			err, ERR_DATA,
			"%s: berth.header_crc32c is not at the position where berth writes it",
			name);
	snprintf(seen, sizeof seen, "%08x",
		 header_sum(header, header_size, (size_t)(mark - header) + sizeof header_mark - 1));
	if (strcmp(want, seen))
		return error_set(err, ERR_DATA,
				 "%s: the header's checksum is %s, but the file records %.16s: the "
				 "file is damaged",
				 name, seen, want);
	return 0;
}

/* Parse size bytes as the header of a file with data_size bytes of data. */
static int parse_header(const char *name, const char *header, size_t size, size_t data_size,
			struct safetensors *file, struct error *err)
{
	int rc = json_read(name, header, size, SAFETENSORS_MAX_HEADER, &file->header, err);

	if (!rc)
		rc = read_metadata(name, file, err);
	if (!rc)
		rc = read_entries(name, file, data_size, err);
	return rc ? rc : check_header_sum(name, file, header, size, err);
}

/* Point each tensor to its data, and compare their checksums. */
static int attach_data(const char *name, struct safetensors *file, const char *data,
		       struct error *err)
{
	bool has_sums = json_object_get(file->metadata, "berth.header_crc32c");
	char seen[16], key[512];

	for (size_t i = 0; i < file->count; i++) {
		struct safetensor *tensor = &file->tensors[i];

		tensor->data = data + tensor->offset;
		if (!has_sums)
			continue;
		snprintf(key, sizeof key, "berth.crc32c.%s", tensor->name);
		snprintf(seen, sizeof seen, "%08x", crc32c(0, tensor->data, tensor->size_bytes));

		const char *want = json_string_value(json_object_get(file->metadata, key));

		if (!want || strcmp(want, seen))
			return error_set(err, ERR_DATA,
					 "%s: the checksum of tensor %.64s is %s, but the file "
					 "records %.16s: the file is damaged",
					 name, tensor->name, seen, want ? want : "nothing");
	}
	return 0;
}

/* The length of the header of a file of size bytes, which begins with bytes. 0: err says what is
 * wrong with it. */
static size_t header_length(const char *name, const void *bytes, size_t size, struct error *err)
{
	uint64_t length = size < 10 ? 0 : bytes_get_u64(bytes);

	if (size < 10)
		error_set(err, ERR_DATA, "%s: %zu bytes are too few for a safetensors file", name,
			  size);
	else if (length >= 2 && length <= size - 8 && length <= SAFETENSORS_MAX_HEADER)
		return (size_t)length;
	else
		error_set(
			err, ERR_DATA,
			"%s: the header claims %" PRIu64
			" bytes in a file of %zu: the file is truncated or not a safetensors file",
			name, length, size);
	return 0;
}

int safetensors_parse(const char *name, const void *bytes, size_t size, struct safetensors *out,
		      struct error *err)
{
	size_t length = header_length(name, bytes, size, err);
	const char *header = (const char *)bytes + 8;
	int rc;

	*out = (struct safetensors){0};
	if (!length)
		return -ERR_DATA;
	rc = parse_header(name, header, length, size - 8 - length, out, err);
	if (!rc)
		rc = attach_data(name, out, header + length, err);
	if (rc)
		safetensors_free(out);
	return rc;
}

int safetensors_read(const char *path, struct safetensors *out, struct error *err)
{
	char *bytes;
	size_t size;
	int rc = file_read(path, MAX_FILE, &bytes, &size, err);

	if (rc)
		return rc;
	rc = safetensors_parse(path, bytes, size, out, err);
	if (rc)
		free(bytes);
	else
		out->file = bytes;
	return rc;
}

int safetensors_read_header(const char *path, struct safetensors *out, struct error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc;
	char start[8] = {0}, *header = NULL;
	struct stat info;
	size_t length;

	*out = (struct safetensors){0};
	if (fd < 0 || fstat(fd, &info) || pread(fd, start, sizeof start, 0) < 0)
		rc = error_set(err, ERR_INPUT, "cannot read %s: %m", path);
	else if (!(length = header_length(path, start, (size_t)info.st_size, err)))
		rc = -ERR_DATA;
	else if (!(header = malloc(length)))
		rc = error_memory(err, path);
	else if (pread(fd, header, length, sizeof start) != (ssize_t)length)
		rc = error_set(err, ERR_INPUT, "cannot read the header of %s", path);
	else
		rc = parse_header(path, header, length, (size_t)info.st_size - 8 - length, out,
				  err);
	if (fd >= 0)
		close(fd);
	free(header);
	if (rc)
		safetensors_free(out);
	return rc;
}
