/* SPDX-License-Identifier: BSD-3-Clause */
/* Augmentation against a slow and simple implementation, and the files of the formats, good and
 * bad. */
#include "../rows.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/data/dataset.h"
#include "base/random.h"

/* ---- draws ---- */

/* Random123's known answers (kat_vectors, philox4x32 10), for the rows whose last counter word is
 * 0. The last row comes from a second, independent implementation. */
static void draws(void **state)
{
	static const struct {
		uint64_t seed;
		uint32_t epoch, index, draw, expected[4];
	} rows[] = {
		{0, 0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{(UINT64_C(7) << 32) + 5,
		 1,
		 2,
		 3,
		 {0x1f0e5a88, 0x78301010, 0x50060524, 0xe8c7f3b7}},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		uint32_t out[4];

		augment_draw(rows[i].seed, rows[i].epoch, rows[i].index, rows[i].draw, out);
		assert_memory_equal(out, rows[i].expected, sizeof out);
	}
	assert_int_equal(augment_below(0, 9), 0);
	assert_int_equal(augment_below(UINT32_MAX, 9), 8);
	assert_int_equal(augment_below(UINT32_MAX, 1), 0);
	assert_int_equal(augment_below(UINT32_C(1) << 31, 10), 5);
}

/* The choices come from the random words that the header names, are in range, and are uniform. */
static void choices(void **state)
{
	const struct augment augment = {.crop_pad = 4, .flip = true};
	int tops[9] = {0}, lefts[9] = {0}, flips = 0, samples = 90000;

	for (int i = 0; i < samples; i++) {
		struct augment_params choice;
		uint32_t words[4];

		augment_draw_params(&augment, 11, 3, (uint32_t)i, &choice);
		augment_draw(11, 3, (uint32_t)i, AUGMENT_DRAW_CROP, words);
		assert_int_equal(choice.top, (uint64_t)words[0] * 9 >> 32);
		assert_int_equal(choice.left, (uint64_t)words[1] * 9 >> 32);
		assert_int_equal(choice.flip, words[2] < UINT32_C(0x80000000));
		assert_in_range(choice.top, 0, 8);
		assert_in_range(choice.left, 0, 8);
		tops[choice.top]++;
		lefts[choice.left]++;
		flips += choice.flip;
	}
	/* 10000 are expected; five standard deviations of a fair draw are 471. */
	for (int i = 0; i < 9; i++) {
		assert_in_range(tops[i], 9529, 10471);
		assert_in_range(lefts[i], 9529, 10471);
	}
	assert_in_range(flips, 44250, 45750);
}

static void words_of_the_option(void **state)
{
	static const struct {
		const char *text;
		int rc;
		struct augment expected;
	} rows[] = {
		{"none", 0, {0}},
		{"flip", 0, {.flip = true}},
		{"crop", 0, {.crop_pad = 4}},
		{"crop=2,flip", 0, {.crop_pad = 2, .flip = true}},
		{"resized-crop,flip", 0, {.resized_crop = true, .flip = true}},
		{"", -ERR_USAGE, {0}},
		{"flip,", -ERR_USAGE, {0}},
		{"flip,none", -ERR_USAGE, {0}},
		{"crop=0", -ERR_USAGE, {0}},
		{"crop=-1", -ERR_USAGE, {0}},
		{"crop=4x", -ERR_USAGE, {0}},
		{"crop=100000", -ERR_USAGE, {0}},
		{"rotate", -ERR_USAGE, {0}},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		struct augment out = {.crop_pad = -7};
		struct error err = {0};

		if (augment_parse(rows[i].text, &out, &err) != rows[i].rc)
			fail_msg("'%s': %s", rows[i].text, err.text);
		if (rows[i].rc) {
			assert_int_equal(out.crop_pad, -7);
			continue;
		}
		assert_int_equal(out.crop_pad, rows[i].expected.crop_pad);
		assert_int_equal(out.flip, rows[i].expected.flip);
		assert_int_equal(out.resized_crop, rows[i].expected.resized_crop);
	}
}

/* ---- what is done to a sample ---- */

/* The reference implementation: pad the whole image, crop, flip, normalise. */
static float plain(const unsigned char *raw, const struct shape *shape, int pad,
		   const struct augment_params *choice, const float *mean, const float *deviation,
		   int c, int y, int x)
{
	int wide = shape->width + 2 * pad, high = shape->height + 2 * pad;
	unsigned char *padded = calloc((size_t)wide * (size_t)high, 1);

	for (int row = 0; row < shape->height; row++)
		for (int column = 0; column < shape->width; column++)
			padded[(row + pad) * wide + column + pad] =
				raw[(c * shape->height + row) * shape->width + column];
	if (choice->flip)
		x = shape->width - 1 - x;

	float value = (float)padded[(y + choice->top) * wide + x + choice->left];

	free(padded);
	return (value / 255 - mean[c]) / deviation[c];
}

static void crops_and_flips(void **state)
{
	static const struct {
		struct shape shape;
		int pad;
		struct augment_params choice;
		const char *why;
	} rows[] = {
		{{3, 4, 5}, 0, {0, 0, false}, "unchanged"},
		{{3, 4, 5}, 0, {0, 0, true}, "turned"},
		{{1, 4, 5}, 2, {2, 2, false}, "the image is in the middle of the padding"},
		{{2, 4, 5}, 2, {0, 0, false}, "top left"},
		{{2, 4, 5}, 2, {4, 4, true}, "bottom right, flipped"},
		{{2, 4, 5}, 2, {0, 4, true}, "top right, flipped"},
		{{3, 4, 5}, 9, {0, 9, false}, "only padding, above"},
		{{3, 4, 5}, 9, {9, 0, true}, "only padding, on a side"},
		{{3, 4, 5}, 9, {18, 18, false}, "only padding"},
		{{4, 1, 1}, 1, {1, 1, true}, "one pixel"},
	};
	static const float mean[] = {0.5f, 0.4f, 0.3f, 0.2f};
	static const float deviation[] = {0.25f, 0.3f, 0.35f, 0.4f};
	float table[4][256];

	augment_table(4, mean, deviation, table);
	for (size_t i = 0; i < ROWS(rows); i++) {
		const struct shape *shape = &rows[i].shape;
		size_t count = (size_t)shape_count(shape);
		unsigned char *raw = malloc(count);
		float *floats = malloc(count * 4), *x = malloc(count * 4), *y = malloc(count * 4);

		for (size_t k = 0; k < count; k++) {
			raw[k] = (unsigned char)(k * 37 + 11);
			floats[k] = (float)raw[k];
		}
		augment_apply(raw, shape, rows[i].pad, &rows[i].choice, (const float(*)[256])table,
			      x);
		augment_apply(floats, shape, rows[i].pad, &rows[i].choice, NULL, y);
		for (size_t k = 0; k < count; k++) {
			int column = (int)k % shape->width;
			int row = (int)k / shape->width % shape->height;
			int c = (int)k / shape->width / shape->height;
			float expected = plain(raw, shape, rows[i].pad, &rows[i].choice, mean,
					       deviation, c, row, column);

			if (memcmp(&x[k], &expected, 4))
				fail_msg("%s: channel %d row %d column %d is %g, expected %g",
					 rows[i].why, c, row, column, (double)x[k],
					 (double)expected);
			float value = (y[k] / 255 - mean[c]) / deviation[c];

			if (memcmp(&value, &expected, 4))
				fail_msg("%s: as floats, element %zu differs", rows[i].why, k);
		}
		free(raw);
		free(floats);
		free(x);
		free(y);
	}
}

/* ---- CIFAR ---- */

static char directory[64];

static int make_folder(void **state)
{
	strcpy(directory, "/tmp/berth-data-XXXXXX");
	return mkdtemp(directory) ? 0 : -1;
}

static int remove_folder(void **state)
{
	char command[96];

	snprintf(command, sizeof command, "rm -rf %s", directory);
	return system(command);
}

static char *path_in(const char *inner, const char *name)
{
	static char path[256];

	snprintf(path, sizeof path, "%s%s%s/%s", directory, *inner ? "/" : "", inner, name);
	return path;
}

/* Write records whose labels count up and whose pixels encode file and position. */
static void write_records(const char *path, const struct cifar_layout *layout, int file,
			  int records)
{
	FILE *out = fopen(path, "we");

	assert_non_null(out);
	for (int i = 0; i < records; i++) {
		unsigned char pixels[3072];

		for (int k = 0; k < layout->label_bytes; k++)
			fputc((i + file) % layout->label_ends[k], out);
		for (int k = 0; k < 3072; k++)
			pixels[k] = (unsigned char)(i * 5 + k * 3 + file * 7);
		assert_int_equal(fwrite(pixels, 1, sizeof pixels, out), sizeof pixels);
	}
	assert_int_equal(fclose(out), 0);
}

static void write_cifar10(const char *inner)
{
	char name[32];

	for (int i = 1; i <= 5; i++) {
		snprintf(name, sizeof name, "data_batch_%d.bin", i);
		write_records(path_in(inner, name), &cifar10_layout, i, 10000);
	}
	write_records(path_in(inner, "test_batch.bin"), &cifar10_layout, 6, 10000);
}

static int open_spec(const char *name, enum split split, const char *augment, struct dataset **out,
		     struct error *err)
{
	char spec[128];

	snprintf(spec, sizeof spec, "%s:%s", name, directory);
	const struct dataset_request request = {
		.spec = spec, .split = split, .seed = 5, .augment = augment};

	return dataset_open(&request, out, err);
}

/* Sample n is record n of the concatenated files; its class is the record's last label. */
static void cifar_good(void **state)
{
	static const struct {
		const char *name, *inner;
		enum split split;
		int64_t count;
		int classes;
		uint32_t index;
		int file, record;
	} rows[] = {
		{"cifar10", "", SPLIT_TRAIN, 50000, 10, 0, 1, 0},
		{"cifar10", "", SPLIT_TRAIN, 50000, 10, 20003, 3, 3},
		{"cifar10", "", SPLIT_TRAIN, 50000, 10, 49999, 5, 9999},
		{"cifar10", "", SPLIT_VAL, 10000, 10, 77, 6, 77},
		{"cifar100", "cifar-100-binary", SPLIT_TRAIN, 50000, 100, 49998, 1, 49998},
		{"cifar100", "cifar-100-binary", SPLIT_VAL, 10000, 100, 9999, 2, 9999},
	};

	write_cifar10("");
	mkdir(path_in("", "cifar-100-binary"), 0700);
	write_records(path_in("cifar-100-binary", "train.bin"), &cifar100_train_layout, 1, 50000);
	write_records(path_in("cifar-100-binary", "test.bin"), &cifar100_test_layout, 2, 10000);
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct dataset *data = NULL;
		struct error err = {0};
		unsigned char raw[3072];
		float x[3072], again[3072];
		int32_t label, after;
		struct dataset_scratch scratch = {0};

		if (open_spec(rows[i].name, rows[i].split, NULL, &data, &err))
			fail_msg("%s: %s", rows[i].name, err.text);
		assert_int_equal(data->count, rows[i].count);
		assert_int_equal(data->classes, rows[i].classes);
		assert_int_equal(shape_count(&data->shape), 3072);
		bool train = rows[i].split == SPLIT_TRAIN;

		assert_int_equal(data->augment.crop_pad, train ? 4 : 0);
		assert_int_equal(data->augment.flip, train);
		assert_int_equal(
			data->format->sample(data, rows[i].index, 0, &scratch, raw, &label, &err),
			0);
		assert_int_equal(label, (rows[i].record + rows[i].file) % rows[i].classes);
		for (int k = 0; k < 3072; k++)
			assert_int_equal(raw[k], (unsigned char)(rows[i].record * 5 + k * 3 +
								 rows[i].file * 7));
		/* The network's input is the same when read twice; for val it is the same in each
		 * epoch. */
		assert_int_equal(dataset_sample(data, rows[i].index, 2, &scratch, x, &after, &err),
				 0);
		assert_int_equal(after, label);
		assert_int_equal(dataset_sample(data, rows[i].index, train ? 2 : 3, &scratch, again,
						&after, &err),
				 0);
		assert_memory_equal(x, again, sizeof x);
		if (!train)
			for (int k = 0; k < 3072; k++)
				assert_true(x[k] == data->table[k / 1024][raw[k]]);
		dataset_scratch_free(&scratch);
		dataset_close(data);
	}
}

static void cifar_bad(void **state)
{
	struct dataset *data;
	struct error err = {0};
	char *first = strdup(path_in("", "data_batch_1.bin"));

	assert_int_equal(open_spec("cifar10", SPLIT_TRAIN, NULL, &data, &err), -ERR_INPUT);
	assert_non_null(strstr(err.text, "data_batch_1.bin is missing"));
	assert_non_null(strstr(err.text, "cifar10:DIR"));
	mkdir(path_in("", "cifar-10-batches-py"), 0700);
	assert_int_equal(open_spec("cifar10", SPLIT_TRAIN, NULL, &data, &err), -ERR_INPUT);
	assert_non_null(strstr(err.text, "Python version"));

	write_cifar10("");
	static const struct {
		off_t size;
		int code;
		const char *words;
	} sizes[] = {
		{30730000 - 1, -ERR_DATA, "30729999 bytes, expected 30730000"},
		{30730000 + 1, -ERR_DATA, "30730001 bytes, expected 30730000"},
		{0, -ERR_DATA, "0 bytes"},
		{30730000, 0, ""}, /* the zeros that extend the file are valid labels and pixels */
	};
	for (size_t i = 0; i < ROWS(sizes); i++) {
		assert_int_equal(truncate(first, sizes[i].size), 0);
		assert_int_equal(open_spec("cifar10", SPLIT_TRAIN, NULL, &data, &err),
				 sizes[i].code);
		if (!sizes[i].code)
			dataset_close(data);
		else if (!strstr(err.text, sizes[i].words))
			fail_msg("expected '%s': %s", sizes[i].words, err.text);
	}

	int fd = open(first, O_WRONLY | O_CLOEXEC);

	assert_int_equal(pwrite(fd, "\12", 1, 3073 * 9999), 1);
	close(fd);
	assert_int_equal(open_spec("cifar10", SPLIT_TRAIN, NULL, &data, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "record 9999 is 10, expected 0 to 9"));
	unlink(first);
	mkdir(first, 0700);
	assert_int_equal(open_spec("cifar10", SPLIT_TRAIN, NULL, &data, &err), -ERR_INPUT);
	assert_non_null(strstr(err.text, "not a regular file"));
	rmdir(first);
	write_records(first, &cifar10_layout, 1, 10000);
	unlink(path_in("", "data_batch_4.bin"));
	assert_int_equal(open_spec("cifar10", SPLIT_TRAIN, NULL, &data, &err), -ERR_INPUT);
	assert_non_null(strstr(err.text, "data_batch_4.bin"));
	free(first);
}

/* ---- the table of formats ---- */

static void formats(void **state)
{
	static const struct {
		const char *spec, *augment;
		int rc;
		const char *words;
	} rows[] = {
		{"synthetic:3x8x8,n=5", "flip,crop=2", 0, ""},
		{"synthetic:20,n=5", "none", 0, ""},
		{"synthetic:20,n=5", "auto", 0, ""},
		{"synthetic:20,n=5", "flip", -ERR_USAGE, "requires images"},
		{"synthetic:3x8x8,n=5", "resized-crop", -ERR_USAGE, "imagefolder"},
		{"synthetic:3x8x8,n=5", "spin", -ERR_USAGE, "spin"},
		{"cifar10", NULL, -ERR_USAGE, "cifar10:DIR"},
		{"mnist", NULL, -ERR_USAGE, "mnist:DIR"},
		{"cifar", NULL, -ERR_USAGE, "cifar10, cifar100"},
	};

	for (size_t i = 0; i < ROWS(rows); i++) {
		const struct dataset_request request = {
			.spec = rows[i].spec, .augment = rows[i].augment, .seed = 1};
		struct dataset *data;
		struct error err = {0};

		if (dataset_open(&request, &data, &err) != rows[i].rc)
			fail_msg("%s %s: %s", rows[i].spec, rows[i].augment, err.text);
		if (!rows[i].rc)
			dataset_close(data);
		else if (!strstr(err.text, rows[i].words))
			fail_msg("expected '%s': %s", rows[i].words, err.text);
	}
}

/* Synthetic regression data: y = X w with the same w for all samples, plus noise of 0.1. */
static void regression(void **state)
{
	enum { N = 400, D = 3 };
	const struct dataset_request request = {.spec = "synthetic:3,n=400,classes=1", .seed = 7};
	struct dataset *data;
	struct error err = {0};
	struct dataset_scratch scratch = {0};
	float *x = malloc(N * D * sizeof *x), y[N];
	double a[D][D + 1] = {{0}}, square = 0;

	assert_int_equal(dataset_open(&request, &data, &err), 0);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(dataset_sample(data, i, 0, &scratch, x + i * D, y + i, &err), 0);
	dataset_scratch_free(&scratch);
	/* Solve the normal equations by elimination. */
	for (int n = 0; n < N; n++)
		for (int i = 0; i < D; i++) {
			for (int k = 0; k < D; k++)
				a[i][k] += (double)x[n * D + i] * (double)x[n * D + k];
			a[i][D] += (double)x[n * D + i] * (double)y[n];
		}
	for (int i = 0; i < D; i++)
		for (int row = 0; row < D; row++) {
			double factor = row == i ? 0 : a[row][i] / a[i][i];

			for (int k = 0; k <= D; k++)
				a[row][k] -= factor * a[i][k];
		}
	for (int n = 0; n < N; n++) {
		double off = (double)y[n];

		for (int i = 0; i < D; i++)
			off -= a[i][D] / a[i][i] * (double)x[n * D + i];
		square += off * off;
	}
	/* 0.1 is expected; five standard deviations of an estimate from 400 samples are 0.018. */
	assert_true(square / N > 0.082 * 0.082 && square / N < 0.118 * 0.118);
	free(x);
	dataset_close(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(draws),
		cmocka_unit_test(choices),
		cmocka_unit_test(words_of_the_option),
		cmocka_unit_test(crops_and_flips),
		cmocka_unit_test_setup_teardown(cifar_good, make_folder, remove_folder),
		cmocka_unit_test_setup_teardown(cifar_bad, make_folder, remove_folder),
		cmocka_unit_test(formats),
		cmocka_unit_test(regression),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
