/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints written in the background: the result of a snapshot, of a failed write, and of an end
 * during a write; and which device allocates a snapshot's memory. */
#include "../rows.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "train/checkpoint/directory.h"
#include "train/checkpoint/writer.h"

static int blocks;

static int counted_new(struct device *device, size_t size_bytes, void **out, struct error *err)
{
	*out = malloc(size_bytes);
	blocks++;
	return *out ? 0 : error_memory(err, "memory");
}

static void counted_free(struct device *device, void *memory)
{
	blocks--;
	free(memory);
}

static const struct device_ops plain = {.name = "plain"};
static const struct device_ops counted = {
	.name = "counted", .host_memory_new = counted_new, .host_memory_free = counted_free};

struct rig {
	char directory[32];
	struct graph *graph;
	struct buckets buckets;
	struct device device;
	struct owner *owner;
	struct writer *writer;
};

static void rig_begin(struct rig *rig, const struct device_ops *ops, int64_t keep, int renew_ms)
{
	const struct shape shape = {1, 4, 4};
	struct error err = {0};

	*rig = (struct rig){.directory = "/tmp/berth-writer-XXXXXX", .device = {ops}};
	assert_non_null(mkdtemp(rig->directory));
	rig->graph = graph_new("small", &shape, 3);
	graph_linear(rig->graph, "fc", 0, 3);
	assert_int_equal(rig->graph->error.code, 0);
	assert_int_equal(
		buckets_make(rig->graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &rig->buckets, &err), 0);
	const struct owner_identity self = {.scheduler = "", .job = "", .predecessors = ""};
	const struct owner_request owner = {.directory = rig->directory, .self = &self};

	if (renew_ms)
		assert_int_equal(owner_acquire(&owner, &rig->owner, &err), 0);
	const struct writer_request request = {.directory = rig->directory,
					       .graph = rig->graph,
					       .buckets = &rig->buckets,
					       .device = &rig->device,
					       .keep = keep,
					       .owner = rig->owner,
					       .renew_ms = renew_ms};

	assert_int_equal(writer_new(&request, &rig->writer, &err), 0);
}

static void rig_end(struct rig *rig)
{
	char command[64];

	assert_true(writer_free(rig->writer, 20000));
	owner_release(rig->owner);
	buckets_free(&rig->buckets);
	graph_free(rig->graph);
	snprintf(command, sizeof command, "rm -r %s", rig->directory);
	assert_int_equal(system(command), 0);
}

static void start(struct rig *rig, int64_t step, float value, double best)
{
	struct variables *snapshot = writer_snapshot(rig->writer);
	const struct writer_job job = {
		.state = {.step = step, .world = 1, .batch = 1, .update = 1, .data = "none"},
		.best = best};

	for (size_t i = 0; i < snapshot->weight_count; i++) {
		snapshot->weights[i] = value;
		snapshot->momentum[i] = -value;
	}
	writer_start(rig->writer, &job);
}

static int result_of(struct rig *rig, struct writer_result *result)
{
	struct error err = {0};

	assert_int_equal(writer_wait(rig->writer, 20000, &err), 0);
	assert_int_equal(writer_wait(rig->writer, 0, NULL), 0);
	assert_true(writer_take_result(rig->writer, result));
	assert_false(writer_take_result(rig->writer, &(struct writer_result){0}));
	return result->rc;
}

/* The file holds the snapshot even though training continues. Old checkpoints are removed, and the
 * best one stays. */
static void writes(void **state)
{
	const struct device_ops *const kinds[] = {&plain, &counted};

	for (size_t k = 0; k < ROWS(kinds); k++) {
		struct writer_result result;
		struct train_state at;
		struct variables read;
		struct error err = {0};
		struct rig rig;
		double best;

		rig_begin(&rig, kinds[k], 2, 0);
		assert_int_equal(blocks, k);
		assert_false(writer_take_result(rig.writer, &result));
		for (int64_t step = 1; step <= 5; step++) {
			start(&rig, step, (float)step, step == 2 ? 50 : -1);
			assert_int_equal(result_of(&rig, &result), 0);
			assert_int_equal(result.step, step);
			assert_true(result.seconds > 0 && result.size_bytes > 100);
			assert_null(result.notes);
			assert_true(result.best == (step == 2 ? 50 : -1));
			assert_int_equal(variables_new(rig.graph, &rig.buckets, &read, &err), 0);
			assert_int_equal(checkpoint_load(result.path, &at, &read, &err), 0);
			assert_true(at.step == step && read.weights[0] == (float)step &&
				    read.momentum[0] == -(float)step);
			variables_free(&read);
			writer_result_free(&result);
		}
		size_t count;
		int64_t *steps = checkpoint_dir_steps(rig.directory, &count, &err);

		assert_true(count == 3 && steps[0] == 5 && steps[1] == 4 && steps[2] == 2);
		free(steps);
		assert_int_equal(checkpoint_dir_latest(rig.directory, NULL), 5);
		assert_int_equal(checkpoint_dir_best(rig.directory, &best), 2);
		assert_true(best == 50);
		rig_end(&rig);
		assert_int_equal(blocks, 0);
	}
}

static void keep_words(void *context, const char *text)
{
	snprintf(context, 64, "%s", text);
}

/* If it is unknown what latest or best names, nothing is removed, and that is reported. */
static void unreadable(void **state)
{
	static const char *const names[] = {"best", "latest"};

	for (size_t i = 0; i < ROWS(names); i++) {
		struct writer_result result;
		struct error err = {0};
		struct rig rig;
		char path[64], said[64];
		size_t count;

		rig_begin(&rig, &plain, !i, 0);
		snprintf(path, sizeof path, "%s/%s", rig.directory, names[i]);
		snprintf(said, sizeof said, "cannot tell which one %s names", path);
		for (int64_t step = 1; step <= 4; step++) {
			/* latest is written with each checkpoint, and cannot replace a directory of
			 * that name. */
			if (step == 3 && i)
				break;
			if (step == 3)
				assert_int_equal(mkdir(path, 0777), 0);
			start(&rig, step, 1, -1);
			assert_int_equal(result_of(&rig, &result), 0);
			if (step < 3)
				assert_null(result.notes);
			else if (!result.notes || !strstr(result.notes, said))
				fail_msg("%s", result.notes ? result.notes : "no notes");
			writer_result_free(&result);
		}
		if (i) {
			const struct checkpoint_sink sink = {said, keep_words};
			struct checkpoint_dir_verified known = {0};

			assert_int_equal(unlink(path), 0);
			assert_int_equal(mkdir(path, 0777), 0);
			checkpoint_dir_prune(rig.directory, rig.graph, 2, 1, &known, &sink);
			checkpoint_dir_verified_free(&known);
			assert_non_null(strstr(said, "not removing old checkpoints"));
		}
		free(checkpoint_dir_steps(rig.directory, &count, &err));
		assert_int_equal(count, i ? 2 : 3);
		rig_end(&rig);
	}
}

/* A failed write reports why and where, and does not affect the next one. */
static void fails(void **state)
{
	struct writer_result result;
	struct rig rig;
	char away[48];

	rig_begin(&rig, &plain, 0, 0);
	start(&rig, 1, 1, -1);
	assert_int_equal(result_of(&rig, &result), 0);
	writer_result_free(&result);
	snprintf(away, sizeof away, "%s.away", rig.directory);
	assert_int_equal(rename(rig.directory, away), 0);
	start(&rig, 2, 2, 90);
	assert_int_equal(result_of(&rig, &result), -ERR_OUTPUT);
	assert_true(result.best == -1);
	assert_non_null(strstr(result.err.text, rig.directory));
	assert_null(result.path);
	writer_result_free(&result);
	assert_int_equal(rename(away, rig.directory), 0);
	assert_int_equal(checkpoint_dir_latest(rig.directory, NULL), 1);
	start(&rig, 3, 3, -1);
	assert_int_equal(result_of(&rig, &result), 0);
	writer_result_free(&result);
	assert_int_equal(checkpoint_dir_latest(rig.directory, NULL), 3);
	rig_end(&rig);
}

/* The end waits for a write in progress. */
static void ends(void **state)
{
	for (int i = 0; i < 20; i++) {
		struct rig rig;
		char *path;

		rig_begin(&rig, &counted, 0, 0);
		start(&rig, 7, 7, -1);
		assert_true(writer_free(rig.writer, 20000));
		rig.writer = NULL;
		path = checkpoint_dir_path_of(rig.directory, 7);
		assert_int_equal(access(path, F_OK), 0);
		free(path);
		rig_end(&rig);
	}
}

static json_int_t renewals(const struct rig *rig)
{
	char path[48], *text;
	struct error err = {0};
	size_t size;
	JSON_AUTO json = NULL;

	snprintf(path, sizeof path, "%s/.owner", rig->directory);
	assert_int_equal(file_read(path, 4096, &text, &size, &err), 0);
	assert_int_equal(json_read(path, text, size, 4096, &json, &err), 0);
	free(text);
	return json_integer_value(json_object_get(json, "renewals"));
}

/* More than three renewals within 20 s. */
static void assert_renewed(const struct rig *rig)
{
	json_int_t before = renewals(rig);

	for (int i = 0; i < 2000 && renewals(rig) <= before + 3; i++)
		usleep(10000);
	assert_true(renewals(rig) > before + 3);
}

/* The owner file is renewed between writes and during a slow write: latest is a pipe without a
 * reader. A takeover in that time is noticed before the write ends. */
static void renews(void **state)
{
	const struct owner_identity self = {.scheduler = "", .job = "other", .predecessors = ""};
	struct writer_result result;
	struct error err = {0};
	struct owner *taker;
	struct rig rig;
	char path[48];
	int fd;

	rig_begin(&rig, &plain, 0, 20);
	snprintf(path, sizeof path, "%s/latest", rig.directory);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_renewed(&rig);
	start(&rig, 1, 1, -1);
	assert_renewed(&rig);
	assert_int_equal(writer_wait(rig.writer, 0, NULL), -ERR_IO);
	assert_int_equal(writer_lost(rig.writer, &err), 0);
	const struct owner_request request = {
		.directory = rig.directory, .self = &self, .take_over = true};

	assert_int_equal(owner_acquire(&request, &taker, &err), 0);
	for (int i = 0; i < 2000 && !writer_lost(rig.writer, &err); i++)
		usleep(10000);
	assert_int_equal(writer_lost(rig.writer, &err), -ERR_OUTPUT);
	assert_non_null(strstr(err.text, "was taken over by job other"));
	assert_int_equal(writer_wait(rig.writer, 0, NULL), -ERR_IO);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(result_of(&rig, &result), 0);
	writer_result_free(&result);
	close(fd);
	/* Nothing more is written. */
	start(&rig, 2, 2, -1);
	assert_int_equal(result_of(&rig, &result), -ERR_OUTPUT);
	writer_result_free(&result);
	owner_release(taker);
	rig_end(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writes), cmocka_unit_test(unreadable), cmocka_unit_test(fails),
		cmocka_unit_test(ends),	  cmocka_unit_test(renews),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
