/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints and model files of a network: what is read back, and that an unusable file changes
 * nothing. */
#include "../rows.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "train/checkpoint/checkpoint.h"

/* A small network with everything: buffers and a head. */
static struct graph *network(int classes)
{
	const struct shape shape = {3, 8, 8};
	struct graph *graph = graph_new("small", &shape, classes);

	assert_non_null(graph);
	int value = graph_conv2d(graph, "conv1", 0, 4, 3, 1, 1, false);

	value = graph_relu(graph, graph_batchnorm(graph, "bn1", value));
	value = graph_conv2d(graph, "conv2", value, 6, 3, 2, 1, true);
	value = graph_relu(graph, graph_batchnorm(graph, "bn2", value));
	graph_linear(graph, "fc", graph_avgpool(graph, value), classes);
	assert_int_equal(graph->error.code, 0);
	return graph;
}

struct rig {
	char directory[32];
	struct graph *graph;
	struct buckets buckets;
	struct variables variables;
};

static void number(float *to, size_t count, float first)
{
	for (size_t i = 0; i < count; i++)
		to[i] = first + (float)(i % 1000);
}

static void rig_begin(struct rig *rig, int classes)
{
	struct error err = {0};

	*rig = (struct rig){.directory = "/tmp/berth-state-XXXXXX"};
	assert_non_null(mkdtemp(rig->directory));
	rig->graph = network(classes);
	if (buckets_make(rig->graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &rig->buckets, &err) ||
	    variables_new(rig->graph, &rig->buckets, &rig->variables, &err))
		fail_msg("%s", err.text);
	number(rig->variables.weights, rig->variables.weight_count, 1);
	number(rig->variables.momentum, rig->variables.weight_count, 2);
	number(rig->variables.buffers, rig->variables.buffer_count, 3);
}

static void rig_end(struct rig *rig)
{
	variables_free(&rig->variables);
	buckets_free(&rig->buckets);
	graph_free(rig->graph);
	rmdir(rig->directory);
}

static bool differs(const struct variables *a, const struct variables *b)
{
	return memcmp(a->weights, b->weights, a->weight_count * sizeof(float)) ||
	       memcmp(a->momentum, b->momentum, a->weight_count * sizeof(float)) ||
	       memcmp(a->buffers, b->buffers, a->buffer_count * sizeof(float));
}

static const struct train_state saved = {.step = 12,
					 .epoch = 3,
					 .position = 40,
					 .world = 2,
					 .batch = 8,
					 .update = 16,
					 .epochs = 90,
					 .batches = 24,
					 .seed = UINT64_C(0xfedcba9876543210),
					 .scale = 1024.5,
					 .growth_tracker = 1999,
					 .data = "synthetic"};

static void comes_back(void **state)
{
	struct rig rig, other;
	struct train_state read = {0};
	struct error err = {0};
	char *path = NULL, latest[64];

	rig_begin(&rig, 5);
	rig_begin(&other, 5);
	memset(other.variables.weights, 0, other.variables.weight_count * sizeof(float));
	memset(other.variables.momentum, 0, other.variables.weight_count * sizeof(float));
	memset(other.variables.buffers, 0, other.variables.buffer_count * sizeof(float));
	assert_true(differs(&rig.variables, &other.variables));
	if (checkpoint_save(rig.directory, &saved, &rig.variables, NULL, &path, &err) ||
	    checkpoint_load(path, &read, &other.variables, &err))
		fail_msg("%s", err.text);
	assert_false(differs(&rig.variables, &other.variables));
	assert_int_equal(read.step, saved.step);
	assert_int_equal(read.epoch, saved.epoch);
	assert_int_equal(read.position, saved.position);
	assert_int_equal(read.world, saved.world);
	assert_int_equal(read.batch, saved.batch);
	assert_int_equal(read.update, saved.update);
	assert_int_equal(read.batches, saved.batches);
	assert_int_equal(read.epochs, saved.epochs);
	assert_true(read.seed == saved.seed);
	assert_true(read.scale == saved.scale && read.growth_tracker == saved.growth_tracker);
	assert_string_equal(read.data, saved.data);
	unlink(path);
	free(path);
	snprintf(latest, sizeof latest, "%s/latest", rig.directory);
	unlink(latest);
	rig_end(&rig);
	rig_end(&other);
}

static int words_told;

static void count_words(void *context, const char *text)
{
	words_told++;
}

static void write_latest(const char *directory, const char *text)
{
	char path[96];

	snprintf(path, sizeof path, "%s/latest", directory);
	unlink(path);
	if (!text)
		return;
	FILE *file = fopen(path, "we");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

/* Set latest's time to after_s seconds after that of the file at path. */
static void date_latest(const char *directory, const char *path, int after_s)
{
	char latest[96];
	struct stat info;

	snprintf(latest, sizeof latest, "%s/latest", directory);
	assert_int_equal(stat(path, &info), 0);

	struct timespec times[2] = {info.st_mtim, info.st_mtim};

	times[0].tv_sec += after_s;
	times[1].tv_sec += after_s;
	assert_int_equal(utimensat(AT_FDCWD, latest, times, 0), 0);
}

/* What latest names comes first, even if there is a later step that was written before latest: that
 * one belongs to another run. A later step that was written after latest was left by a killed run
 * and comes first. Without latest, the last step comes first. */
static void newest(void **state)
{
	static const struct {
		const char *latest;
		int64_t step;
		int told, after_s; /* of latest, after step 20's time */
	} rows[] = {
		{"step-00000020.safetensors\n", 20, 0, 1},
		{"step-00000012.safetensors\n", 12, 0, 1},
		{"step-00000012.safetensors", 12, 0, 1},
		{"step-00000012.safetensors\n", 20, 0, -1},
		{"step-00000012.safetensors\n", 20, 0, 0},
		{NULL, 20, 0, 0},
		{"step-00000013.safetensors\n", 20, 1, 1},
		{"step-00000013.safetensors\n", 20, 1, -1},
		{"step-12\n", 20, 1, 1},
		{"", 20, 1, 1},
	};
	const struct checkpoint_sink sink = {NULL, count_words};
	struct train_state at = saved;
	struct error err = {0};
	char *paths[2];
	struct rig rig;

	rig_begin(&rig, 5);
	for (int i = 0; i < 2; i++) {
		at.step = i ? 20 : 12;
		if (checkpoint_save(rig.directory, &at, &rig.variables, NULL, &paths[i], &err))
			fail_msg("%s", err.text);
	}
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct train_state read = {0};
		char *path;

		write_latest(rig.directory, rows[i].latest);
		if (rows[i].latest)
			date_latest(rig.directory, paths[1], rows[i].after_s);
		words_told = 0;
		if (checkpoint_resume(rig.directory, &sink, &read, &rig.variables, &path, &err))
			fail_msg("%s", err.text);
		assert_non_null(path);
		assert_int_equal(read.step, rows[i].step);
		assert_int_equal(words_told, rows[i].told);
		free(path);
	}
	/* A copy under another step's name does not count as that step. */
	char copy[96], *path;

	snprintf(copy, sizeof copy, "%s/step-00000030.safetensors", rig.directory);
	assert_int_equal(link(paths[1], copy), 0);
	words_told = 0;
	write_latest(rig.directory, NULL);
	assert_int_equal(checkpoint_resume(rig.directory, &sink, &at, &rig.variables, &path, &err),
			 0);
	assert_string_equal(path, paths[1]);
	assert_int_equal(words_told, 1);
	free(path);
	unlink(copy);
	for (int i = 0; i < 2; i++) {
		unlink(paths[i]);
		free(paths[i]);
	}
	rig_end(&rig);
}

/* Write the bytes of a file into another. */
static void put_bytes(const char *path, const char *bytes, size_t size)
{
	FILE *file = fopen(path, "we");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, size, file), size);
	assert_int_equal(fclose(file), 0);
}

/* A truncated or damaged checkpoint is never resumed from; the one before it is. */
static void damaged(void **state)
{
	const struct checkpoint_sink sink = {NULL, count_words};
	struct train_state at = saved, read;
	struct error err = {0};
	char *paths[2], *bytes;
	size_t size, header, cuts = 0, flips = 0;
	struct rig rig;

	rig_begin(&rig, 5);
	for (int i = 0; i < 2; i++) {
		at.step = i ? 20 : 12;
		if (checkpoint_save(rig.directory, &at, &rig.variables, NULL, &paths[i], &err))
			fail_msg("%s", err.text);
	}
	assert_int_equal(file_read(paths[1], 1 << 24, &bytes, &size, &err), 0);
	memcpy(&header, bytes, 8);
	header += 8;
	for (size_t cut = 0, bit = 0; cut < size || bit < size * 8;) {
		char *path, what[64];

		/* One or two bits of each byte of the header, then some of the data. */
		if (cut < size) {
			snprintf(what, sizeof what, "cut at %zu", cut);
			put_bytes(paths[1], bytes, cut);
			cut += 512;
			cuts++;
		} else {
			snprintf(what, sizeof what, "bit %zu", bit);
			bytes[bit / 8] ^= (char)(1 << bit % 8);
			put_bytes(paths[1], bytes, size);
			bytes[bit / 8] ^= (char)(1 << bit % 8);
			bit += bit < header * 8 ? 5 : 97;
			flips++;
		}
		words_told = 0;
		if (checkpoint_resume(rig.directory, &sink, &read, &rig.variables, &path, &err))
			fail_msg("%s: %s", what, err.text);
		if (!path || read.step != 12 || words_told != 1)
			fail_msg("%s: resumed from step %lld, %d reports", what,
				 (long long)read.step, words_told);
		free(path);
	}
	assert_true(cuts > 8 && flips > 1000);
	free(bytes);
	write_latest(rig.directory, NULL);
	for (int i = 0; i < 2; i++) {
		unlink(paths[i]);
		free(paths[i]);
	}
	rig_end(&rig);
}

/* A path may hold any bytes, but JSON may not. */
static void names_of_data(void **state)
{
	char much[400], cut[256];
	const struct {
		const char *spec, *kept;
	} rows[] = {
		{"synthetic", "synthetic"},
		{"imagefolder:caf\xc3\xa9", "imagefolder:caf\xc3\xa9"},
		{"imagefolder:caf\xe9", "imagefolder:caf\xef\xbf\xbd"},
		{much, cut},
	};

	memset(much, 'x', sizeof much - 1);
	memcpy(much + 254, "\xc3\xa9", 2);
	much[sizeof much - 1] = 0;
	memset(cut, 'x', 254);
	cut[254] = 0;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct train_state at = saved, read = {0};
		struct rig rig;
		struct error err = {0};
		char *path = NULL, latest[64];

		rig_begin(&rig, 5);
		assert_int_equal(train_state_data(&at, rows[i].spec, &err), 0);
		assert_string_equal(at.data, rows[i].kept);
		if (checkpoint_save(rig.directory, &at, &rig.variables, NULL, &path, &err) ||
		    checkpoint_load(path, &read, &rig.variables, &err))
			fail_msg("%s", err.text);
		assert_string_equal(read.data, rows[i].kept);
		unlink(path);
		free(path);
		snprintf(latest, sizeof latest, "%s/latest", rig.directory);
		unlink(latest);
		rig_end(&rig);
	}
}

/* The first row is valid; each other row changes one value. */
#define STATE(MODEL, CLASSES, STEP, EPOCH, POSITION, WORLD, BATCH, BATCHES, SEED)                  \
	"{\"model\":" MODEL ",\"classes\":" CLASSES ",\"step\":" STEP ",\"epoch\":" EPOCH          \
	",\"position\":" POSITION ",\"world\":" WORLD ",\"batch\":" BATCH ",\"batches\":" BATCHES  \
	",\"seed\":" SEED ",\"data\":\"synthetic\"}"
#define NET "\"small\""
#define SCALED(SCALER) STATE(NET, "5", "1", "0", "0", "1", "1", "1", "0,\"scaler\":" SCALER)
#define EPOCHS(COUNT) STATE(NET, "5", "1", "0", "0", "1", "1", "1", "0,\"epochs\":" COUNT)

static void bad_states(void **state)
{
	static const struct {
		const char *format, *text;
		int rc;
		const char *why;
	} rows[] = {
		{"1", STATE(NET, "5", "1", "0", "0", "1", "1", "1", "0"), 0, "valid"},
		{"1", SCALED("null"), 0, "no loss scaling"},
		{"1", SCALED("{\"scale\":0.5,\"growth_tracker\":3}"), 0, "a scale"},
		{"1", EPOCHS("90"), 0, "a number of epochs"},
		{"2", STATE(NET, "5", "1", "0", "0", "1", "1", "1", "0"), 1, "another format"},
		{"1", STATE("\"resnet34\"", "5", "1", "0", "0", "1", "1", "1", "0"), 1, "a model"},
		{"1", STATE("7", "5", "1", "0", "0", "1", "1", "1", "0"), 1, "a model's type"},
		{"1", STATE(NET, "6", "1", "0", "0", "1", "1", "1", "0"), 1, "classes"},
		{"1", STATE(NET, "5", "-1", "0", "0", "1", "1", "1", "0"), 1, "step -1"},
		{"1", STATE(NET, "5", "999999999999", "0", "0", "1", "1", "1", "0"), 1, "a name"},
		{"1", STATE(NET, "5", "1.5", "0", "0", "1", "1", "1", "0"), 1, "half a step"},
		{"1", STATE(NET, "5", "1", "-1", "0", "1", "1", "1", "0"), 1, "epoch -1"},
		{"1", STATE(NET, "5", "1", "0", "-1", "1", "1", "1", "0"), 1, "position -1"},
		{"1", STATE(NET, "5", "1", "0", "0", "0", "1", "1", "0"), 1, "no ranks"},
		{"1", STATE(NET, "5", "1", "0", "0", "2147483647", "1", "1", "0"), 1,
		 "a world whose padding would fill the memory"},
		{"1", STATE(NET, "5", "1", "0", "0", "1", "0", "1", "0"), 1, "no batch"},
		{"1", STATE(NET, "5", "1", "0", "0", "1", "1", "-1", "0"), 1, "batches -1"},
		{"1", STATE(NET, "5", "1", "0", "0", "1", "1", "1", "\"x\""), 1, "a seed"},
		{"1", STATE(NET, "5", "1", "0", "0", "1", "1", "1", "99999999999999999999"), 1,
		 "past 64 bits"},
		{"1", SCALED("{\"scale\":0,\"growth_tracker\":3}"), 1, "a scale of 0"},
		{"1", SCALED("{\"scale\":1e300,\"growth_tracker\":3}"), 1,
		 "a scale beyond float32"},
		{"1", SCALED("{\"scale\":2,\"growth_tracker\":-1}"), 1, "a count"},
		{"1", SCALED("{\"growth_tracker\":1}"), 1, "no scale"},
		{"1", SCALED("7"), 1, "a scaler's type"},
		{"1", EPOCHS("-1"), 1, "epochs -1"},
		{"1", EPOCHS("1.5"), 1, "half an epoch"},
		{"1", EPOCHS("\"x\""), 1, "a type of epochs"},
		{"1", EPOCHS("null"), 1, "no epochs"},
		{"1", EPOCHS("9223372036854775807"), 1, "too many epochs"},
		{"1", "{}", 1, "nothing"},
		{"1", "[]", 1, "a list"},
		{"1", "{\"model\":", 1, "truncated"},
		{"1", "", 1, "empty"},
	};
	struct rig rig, other;
	struct variables_list list;
	struct error err = {0};
	char path[64];

	rig_begin(&rig, 5);
	rig_begin(&other, 5);
	number(rig.variables.buffers, rig.variables.buffer_count, 9);
	assert_int_equal(variables_list(&rig.variables, 1, true, &list, &err), 0);
	snprintf(path, sizeof path, "%s/a.safetensors", rig.directory);
	for (size_t i = ROWS(rows); i-- > 0;) {
		json_t *metadata = json_pack("{s:s, s:s}", "berth.format", rows[i].format,
					     "berth.state", rows[i].text);
		struct train_state read = {.step = -7};

		assert_int_equal(
			safetensors_write(path, list.tensors, list.count, metadata, NULL, &err), 0);
		json_decref(metadata);

		int rc = checkpoint_load(path, &read, &other.variables, &err);

		if (rc != (rows[i].rc ? -ERR_DATA : 0))
			fail_msg("%s: code %d", rows[i].why, rc);
		if (rc && (read.step != -7 || !strstr(err.text, path)))
			fail_msg("%s: the state changed, or the error does not name the file: %s",
				 rows[i].why, err.text);
		/* Only a good row changes the variables. */
		if ((rc != 0) != differs(&rig.variables, &other.variables))
			fail_msg("%s: %s", rows[i].why,
				 rc ? "something was read despite the error"
				    : "not everything was read");
	}
	variables_list_free(&list);
	unlink(path);
	rig_end(&rig);
	rig_end(&other);
}

/* Files whose tensors do not fit; each row changes one tensor. */
static void bad_tensors(void **state)
{
	static const struct {
		const char *name;  /* the tensor that is changed */
		const char *named; /* its new name, or NULL */
		const char *type;  /* its new type, or NULL */
		int64_t more;	   /* additional rows */
		bool new_head;
		int rc;
		const char *why;
	} rows[] = {
		{"conv1.weight", .rc = 0, .why = "nothing changed"},
		{"bn1.num_batches_tracked", .named = "berth.other", .rc = 0, .why = "old PyTorch"},
		{"conv1.weight", .named = "conv9.weight", .rc = 1,
		 .why = "one tensor missing, one superfluous"},
		{"conv1.weight", .type = "I32", .rc = 1, .why = "integers"},
		{"bn2.running_var", .more = 1, .rc = 1, .why = "a longer buffer"},
		{"fc.bias", .more = 2, .rc = 1, .why = "other classes"},
		{"fc.bias", .more = 2, .new_head = true, .rc = 0,
		 .why = "other classes, a new head"},
		{"conv1.weight", .more = 1, .new_head = true, .rc = 1, .why = "not the head"},
		{"fc.weight", .named = "head.weight", .new_head = true, .rc = 1,
		 .why = "a name that this network lacks"},
	};
	struct rig rig, other;
	struct error err = {0};
	char path[64];

	rig_begin(&rig, 5);
	rig_begin(&other, 5);
	number(rig.variables.weights, rig.variables.weight_count, 50);
	snprintf(path, sizeof path, "%s/a.safetensors", rig.directory);
	for (size_t i = 0; i < ROWS(rows); i++) {
		struct train_state begun = {.batches = -7};
		struct variables_list list;
		struct safetensor *tensor;
		float *longer = NULL;

		number(other.variables.weights, other.variables.weight_count, 4);
		assert_int_equal(variables_list(&rig.variables, 77, false, &list, &err), 0);
		for (tensor = list.tensors; strcmp(tensor->name, rows[i].name); tensor++)
			assert_true(tensor < list.tensors + list.count - 1);
		if (rows[i].named)
			tensor->name = rows[i].named;
		if (rows[i].type)
			tensor->type = rows[i].type;
		if (rows[i].more) {
			size_t row = tensor->size_bytes / (size_t)tensor->shape[0];

			tensor->shape[0] += rows[i].more;
			tensor->size_bytes += row * (size_t)rows[i].more;
			tensor->data = longer = calloc(1, tensor->size_bytes);
		}
		assert_int_equal(
			safetensors_write(path, list.tensors, list.count, NULL, NULL, &err), 0);

		int rc = checkpoint_init(path, rows[i].new_head, &begun, &other.variables, &err);

		if (rc != (rows[i].rc ? -ERR_DATA : 0))
			fail_msg("%s: code %d %s", rows[i].why, rc, err.text);
		/* If the first norm has no count, that of another norm is used. */
		if (begun.batches != (rc ? -7 : 77))
			fail_msg("%s: %lld batches", rows[i].why, (long long)begun.batches);
		size_t conv = other.buckets.offsets[0],
		       head = other.buckets.offsets[rig.graph->param_count - 1];

		if (other.variables.weights[conv] !=
		    (rc ? 4 + (float)(conv % 1000) : rig.variables.weights[conv]))
			fail_msg("%s: conv1.weight is %g", rows[i].why,
				 (double)other.variables.weights[conv]);
		if (other.variables.weights[head] != (rc || rows[i].new_head
							      ? 4 + (float)(head % 1000)
							      : rig.variables.weights[head]))
			fail_msg("%s: fc.bias is %g", rows[i].why,
				 (double)other.variables.weights[head]);
		variables_list_free(&list);
		free(longer);
	}
	unlink(path);
	rig_end(&rig);
	rig_end(&other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(comes_back),  cmocka_unit_test(names_of_data),
		cmocka_unit_test(newest),      cmocka_unit_test(bad_states),
		cmocka_unit_test(bad_tensors), cmocka_unit_test(damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
