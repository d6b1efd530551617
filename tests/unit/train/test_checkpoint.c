/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoint files: what is written is read back; damaged, truncated or foreign files are refused.
 */
#include "../rows.h"

#include <unistd.h>

#include "base/file.h"
#include "base/crc32c.h"
#include "train/checkpoint/safetensors.h"

static const float weight[6] = {1, -2, 3.5f, 0, 5, -0.0f};
static const int64_t steps[1] = {1234567890123};

/* RFC 3720, B.4, and the check value of the polynomial. */
static void sums(void **state)
{
	unsigned char bytes[32] = {0};

	assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
	assert_int_equal(crc32c(crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
	assert_int_equal(crc32c(0, "", 0), 0);
	assert_int_equal(crc32c(0, bytes, 32), 0x8a9136aa);
	memset(bytes, 0xff, 32);
	assert_int_equal(crc32c(0, bytes, 32), 0x62a8ab43);
	for (int i = 0; i < 32; i++)
		bytes[i] = (unsigned char)i;
	assert_int_equal(crc32c(0, bytes, 32), 0x46dd794e);
}

/* The bytes of a file of two tensors; malloced. */
static char *written(size_t *size)
{
	const struct safetensor tensors[] = {
		{.name = "conv1.weight",
		 .type = "F32",
		 .rank = 2,
		 .shape = {2, 3},
		 .data = weight,
		 .size_bytes = 24},
		{.name = "bn.num_batches_tracked",
		 .type = "I64",
		 .rank = 0,
		 .data = steps,
		 .size_bytes = 8},
	};
	char directory[] = "/tmp/berth-ckpt-XXXXXX", path[64], *bytes = NULL;
	json_t *metadata = json_pack("{s:s}", "berth.format", "1");
	struct error err = {0};

	assert_non_null(mkdtemp(directory));
	snprintf(path, sizeof path, "%s/a.safetensors", directory);
	if (safetensors_write(path, tensors, 2, metadata, NULL, &err) ||
	    file_read(path, 1 << 20, &bytes, size, &err))
		fail_msg("%s", err.text);
	json_decref(metadata);
	unlink(path);
	/* The directory must be empty otherwise. */
	assert_int_equal(rmdir(directory), 0);
	return bytes;
}

static void round_trip(void **state)
{
	size_t size;
	char *bytes = written(&size);
	struct safetensors file;
	struct error err = {0};

	if (safetensors_parse("file", bytes, size, &file, &err))
		fail_msg("%s", err.text);
	assert_int_equal(file.count, 2);

	const struct safetensor *w = safetensors_find(&file, "conv1.weight");
	const struct safetensor *n = safetensors_find(&file, "bn.num_batches_tracked");

	assert_true(w && n);
	assert_string_equal(w->type, "F32");
	assert_int_equal(w->rank, 2);
	assert_int_equal(w->shape[0] * 10 + w->shape[1], 23);
	assert_memory_equal(w->data, weight, sizeof weight);
	assert_int_equal(n->rank, 0);
	assert_memory_equal(n->data, steps, sizeof steps);
	assert_null(safetensors_find(&file, "conv1"));
	assert_string_equal(json_string_value(json_object_get(file.metadata, "berth.format")), "1");
	/* The data start at a multiple of 8, for readers that map the file. */
	assert_int_equal(((const char *)w->data - bytes) % 8, 0);
	safetensors_free(&file);
	free(bytes);
}

static int refuse(const void *bytes, size_t size)
{
	/* Exactly size bytes, so that a sanitizer detects a read past them. */
	void *copy = malloc(size ? size : 1);
	struct safetensors file;
	struct error err = {0};

	memcpy(copy, bytes, size);
	int rc = safetensors_parse("file", copy, size, &file, &err);

	if (!rc)
		safetensors_free(&file);
	else if (rc != -ERR_DATA || !strstr(err.text, "file"))
		fail_msg("code %d: %s", rc, err.text);
	free(copy);
	return rc;
}

static void cut(void **state)
{
	size_t size;
	char *bytes = written(&size);

	for (size_t length = 0; length < size; length++)
		if (!refuse(bytes, length))
			fail_msg("%zu of %zu bytes are accepted as the whole file", length, size);
	bytes = realloc(bytes, size + 1);
	bytes[size] = 0;
	if (!refuse(bytes, size + 1))
		fail_msg("an excess byte is not detected");
	free(bytes);
}

static void each_bit(void **state)
{
	size_t size;
	char *bytes = written(&size);

	for (size_t bit = 0; bit < size * 8; bit++) {
		bytes[bit / 8] ^= (char)(1 << bit % 8);
		if (!refuse(bytes, size))
			fail_msg("flipped bit %zu is not detected", bit);
		bytes[bit / 8] ^= (char)(1 << bit % 8);
	}
	assert_int_equal(refuse(bytes, size), 0);
	free(bytes);
}

/* A header that is read alone: each flipped bit of it and each other length of the file is
 * detected; the data are not read. */
static void header_alone(void **state)
{
	char path[] = "/tmp/berth-header-XXXXXX";
	struct safetensors file;
	struct error err = {0};
	size_t size, header = 8;
	char *bytes = written(&size);
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	for (size_t i = 0; i < 8; i++)
		header += (size_t)(unsigned char)bytes[i] << 8 * i;
	assert_int_equal(pwrite(fd, bytes, size, 0), size);
	for (size_t bit = 0; bit < size * 8; bit++) {
		char flipped = bytes[bit / 8] ^ (char)(1 << bit % 8);
		off_t at = (off_t)bit / 8;

		assert_int_equal(pwrite(fd, &flipped, 1, at), 1);
		int rc = safetensors_read_header(path, &file, &err);

		if (rc != (bit < header * 8 ? -ERR_DATA : 0))
			fail_msg("flipped bit %zu: %d", bit, rc);
		assert_int_equal(file.count, rc ? 0 : 2);
		safetensors_free(&file);
		assert_int_equal(pwrite(fd, bytes + at, 1, at), 1);
	}
	for (size_t length = size + 2; length-- > 0;) {
		assert_int_equal(ftruncate(fd, (off_t)length), 0);
		int rc = safetensors_read_header(path, &file, &err);

		if (rc != (length == size ? 0 : -ERR_DATA))
			fail_msg("%zu of %zu bytes: %d", length, size, rc);
		safetensors_free(&file);
	}
	close(fd);
	unlink(path);
	assert_int_equal(safetensors_read_header(path, &file, &err), -ERR_INPUT);
	assert_int_equal(safetensors_read_header("/tmp", &file, &err), -ERR_INPUT);
	free(bytes);
}

/* Foreign files lack our checksums, so only the format's own rules protect against damage. data:
 * number of bytes that follow. */
static void foreign(void **state)
{
	static const struct {
		const char *header;
		size_t data;
		int rc;
		const char *why;
	} rows[] = {
		{"{}", 0, 0, "no tensors"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, 0,
		 "one tensor"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}   ", 4, 0,
		 "a scalar, padding"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, 0,
		 "an empty tensor"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, 1,
		 "truncated"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, 1,
		 "too many bytes"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, 1,
		 "shape does not match offsets"},
		{"{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, 1,
		 "an unknown type"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, 1,
		 "a negative side"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, 1,
		 "a fraction"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4294967296,4294967298]"
		 ","
		 "\"data_offsets\":[0,8]}}",
		 8, 1, "a product that overflows 64 bits"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}",
		 8, 1, "9 sides"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, 1,
		 "backwards"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, 1,
		 "offset before the data"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, 1,
		 "three offsets"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, 1, "no offsets"},
		{"{\"a\":7}", 0, 1, "a number instead of a tensor"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
		 "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
		 12, 1, "an overlap"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
		 "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
		 12, 1, "a hole"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
		 "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
		 4, 1, "a duplicate name"},
		{"{\"__metadata__\":7}", 0, 1, "metadata is not an object"},
		{"{\"__metadata__\":{\"a\":7}}", 0, 1, "a metadata value is not a string"},
		{"{\"__metadata__\":{\"berth.header_crc32c\":\"00000000\"}}", 0, 1,
		 "a wrong checksum"},
		{"{\"__metadata__\":{\"berth.header_crc32c\" : \"0\"}}", 0, 1,
		 "a checksum at another position than berth's"},
		{"[]", 0, 1, "a list"},
		{"{\"a\"", 0, 1, "truncated JSON"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		size_t header = strlen(rows[i].header), size = 8 + header + rows[i].data;
		char *bytes = calloc(1, size);

		bytes[0] = (char)(header & 0xff);
		bytes[1] = (char)(header >> 8);
		memcpy(bytes + 8, rows[i].header, header);
		if (!refuse(bytes, size) != !rows[i].rc)
			fail_msg("%s: %s", rows[i].why, rows[i].rc ? "taken" : "refused");
		free(bytes);
	}
}

/* Header lengths of up to 2^64 - 1 in a small file. */
static void header_length(void **state)
{
	static const uint64_t lengths[] = {0,	      1, 3, 1000, UINT64_C(1) << 32, UINT64_MAX - 7,
					   UINT64_MAX};

	for (size_t i = 0; i < ROWS(lengths); i++) {
		unsigned char bytes[10] = {[8] = '{', [9] = '}'};

		for (int k = 0; k < 8; k++)
			bytes[k] = (unsigned char)(lengths[i] >> 8 * k);
		if (!refuse(bytes, sizeof bytes))
			fail_msg("a header of %llu bytes is accepted",
				 (unsigned long long)lengths[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sums),		 cmocka_unit_test(round_trip),
		cmocka_unit_test(cut),		 cmocka_unit_test(each_bit),
		cmocka_unit_test(header_alone),	 cmocka_unit_test(foreign),
		cmocka_unit_test(header_length),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
