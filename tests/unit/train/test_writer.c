/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints written in the background: the result of a snapshot, of a failed write, and of an end
 * during a write; and which device allocates a snapshot's memory. */
#include "../rows.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "train/checkpoint/directory.h"
#include "train/checkpoint/lease.h"
#include "train/checkpoint/writer.h"
#include "../../support/wait.h"

/* For what must happen. */
#define LIMIT_MS wait_ms(30000)

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
	struct lease *lease;
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
	const struct lease_identity self = {.scheduler = "", .job = "", .predecessors = ""};
	const struct lease_request lease = {
		.directory = rig->directory, .self = &self, .run = "ours", .period_ms = renew_ms};

	if (renew_ms)
		assert_int_equal(lease_acquire(&lease, &rig->lease, &err), 0);
	const struct writer_request request = {.directory = rig->directory,
					       .graph = rig->graph,
					       .buckets = &rig->buckets,
					       .device = &rig->device,
					       .keep = keep,
					       .lease = rig->lease};

	assert_int_equal(writer_new(&request, &rig->writer, &err), 0);
}

static void rig_end(struct rig *rig)
{
	char command[64];

	assert_true(writer_free(rig->writer, LIMIT_MS));
	assert_true(lease_release(rig->lease, LIMIT_MS));
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

	assert_int_equal(writer_wait(rig->writer, LIMIT_MS, &err), 0);
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

			assert_int_equal(unlink(path), 0);
			assert_int_equal(mkdir(path, 0777), 0);
			checkpoint_dir_prune(rig.directory, rig.graph, 2, 1, NULL, &sink);
			assert_non_null(strstr(said, "not removing old checkpoints"));
		}
		free(checkpoint_dir_steps(rig.directory, &count, &err));
		assert_int_equal(count, i ? 2 : 3);
		rig_end(&rig);
	}
}

/* Of three checkpoints, the second is changed. With a damaged header, another length, step or
 * network it is neither counted nor removed. Its data are not read. */
static void damaged(void **state)
{
	enum change { DATA, HEADER, CHECKSUM_NAME, CUT, MORE, STEP, NETWORK, CHANGES };

	for (enum change change = DATA; change < CHANGES; change++) {
		struct writer_result result;
		struct error err = {0};
		struct rig rig;
		char paths[3][64], *bytes;
		size_t size, header = 0;
		bool counts = change == DATA;

		rig_begin(&rig, &plain, 0, 0);
		for (int i = 0; i < 3; i++) {
			rig.graph->classes += change == NETWORK && i == 1;
			start(&rig, i + 1, 1, -1);
			assert_int_equal(result_of(&rig, &result), 0);
			rig.graph->classes -= change == NETWORK && i == 1;
			snprintf(paths[i], sizeof paths[i], "%s", result.path);
			writer_result_free(&result);
		}
		assert_int_equal(
			file_read(paths[change == STEP ? 0 : 1], 1 << 24, &bytes, &size, &err), 0);
		memcpy(&header, bytes, 8);
		if (change == DATA)
			bytes[size - 1] ^= 1;
		else if (change == HEADER)
			bytes[8 + header / 2] ^= 1;
		else if (change == CHECKSUM_NAME)
			*(char *)memmem(bytes, size, "header_crc32c", 13) ^= 1;
		size += (size_t)(change == MORE) - (change == CUT);
		assert_int_equal(file_write_atomic(paths[1], bytes, size, 0666, &err), 0);
		free(bytes);
		checkpoint_dir_prune(rig.directory, rig.graph, 3, 2, NULL, NULL);
		if (!access(paths[0], F_OK) == counts || access(paths[1], F_OK))
			fail_msg("change %d with two to keep", change);
		checkpoint_dir_prune(rig.directory, rig.graph, 3, 1, NULL, NULL);
		if (!access(paths[0], F_OK) || !access(paths[1], F_OK) == counts ||
		    access(paths[2], F_OK))
			fail_msg("change %d with one to keep", change);
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
		assert_true(writer_free(rig.writer, LIMIT_MS));
		rig.writer = NULL;
		path = checkpoint_dir_path_of(rig.directory, 7);
		assert_int_equal(access(path, F_OK), 0);
		free(path);
		rig_end(&rig);
	}
}

static atomic_bool stalls, stalled;

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	for (; stalls; usleep(1000))
		stalled = true;
	return __real_fsync(fd);
}

/* Three renewals. */
static void assert_renewed(const struct rig *rig)
{
	struct stat info = {0};
	struct timespec last;
	char path[64];

	snprintf(path, sizeof path, "%s/.lease-000001", rig->directory);
	for (int i = 0, renewals = -1; renewals < 3; i++) {
		last = info.st_mtim;
		assert_int_equal(stat(path, &info), 0);
		renewals +=
			last.tv_sec != info.st_mtim.tv_sec || last.tv_nsec != info.st_mtim.tv_nsec;
		assert_true(i < LIMIT_MS / 10);
		usleep(10000);
	}
}

/* The lease is renewed between writes and while a write stalls. A takeover in that time is noticed
 * before the write ends; when it continues it changes nothing. */
static void renews(void **state)
{
	const struct lease_identity self = {.scheduler = "", .job = "other", .predecessors = ""};
	struct writer_result result;
	struct error err = {0};
	struct lease *taker;
	struct rig rig;
	char path[64];

	rig_begin(&rig, &plain, 1, 20);
	assert_renewed(&rig);
	start(&rig, 1, 1, -1);
	assert_int_equal(result_of(&rig, &result), 0);
	writer_result_free(&result);
	stalls = true;
	start(&rig, 2, 2, 50);
	while (!stalled)
		usleep(1000);
	assert_renewed(&rig);
	assert_int_equal(writer_wait(rig.writer, 0, NULL), -ERR_IO);
	assert_int_equal(lease_lost(rig.lease, &err), 0);
	const struct lease_request request = {
		.directory = rig.directory, .self = &self, .run = "theirs", .take_over = true};

	assert_int_equal(lease_acquire(&request, &taker, &err), 0);
	for (int i = 0; i < LIMIT_MS / 10 && !lease_lost(rig.lease, &err); i++)
		usleep(10000);
	assert_int_equal(lease_lost(rig.lease, &err), -ERR_OUTPUT);
	assert_non_null(strstr(err.text, "was taken over by job other"));
	assert_int_equal(writer_wait(rig.writer, 0, NULL), -ERR_IO);
	stalls = false;
	for (int64_t step = 2; step <= 3; step++) {
		if (step == 3)
			start(&rig, 3, 3, 60);
		assert_int_equal(result_of(&rig, &result), -ERR_OUTPUT);
		writer_result_free(&result);
		assert_int_equal(checkpoint_dir_latest(rig.directory, NULL), 1);
		snprintf(path, sizeof path, "%s/step-%08d.safetensors", rig.directory, (int)step);
		assert_int_not_equal(access(path, F_OK), 0);
		snprintf(path, sizeof path, "%s/best", rig.directory);
		assert_int_not_equal(access(path, F_OK), 0);
	}
	assert_true(lease_release(taker, LIMIT_MS));
	rig_end(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writes), cmocka_unit_test(unreadable), cmocka_unit_test(damaged),
		cmocka_unit_test(fails),  cmocka_unit_test(ends),	cmocka_unit_test(renews),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
