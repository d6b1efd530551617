/* SPDX-License-Identifier: BSD-3-Clause */
/* berth-train: one rank of a data-parallel training. Any launcher may set its RANK, WORLD_SIZE,
 * LOCAL_RANK and MASTER_*; without them it trains alone. */
#include <argp.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arguments.h"
#include "base/env.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/number.h"
#include "exec/exec_place.h"
#include "rendezvous/ranks.h"
#include "train/checkpoint/lease.h"
#include "train/data/dataset.h"
#include "train/data/sampler.h"
#include "train/run/heartbeat.h"
#include "train/run/stop.h"
#include "train/screen.h"
#include "train/train_options.h"

#define ATTEMPTS 10000 /* per job between two requeues */

/* Where the run's messages go. */
struct output {
	struct screen screen;
	const char *report; /* BERTH_REPORT, or NULL */
};

static void progress(void *context, const char *text)
{
	screen_progress(&((struct output *)context)->screen, text);
}

static void note(void *context, const char *text)
{
	screen_line(&((struct output *)context)->screen, text);
}

static void status(void *context, const char *text, const char *activity)
{
	screen_status(&((struct output *)context)->screen, text, activity);
}

/* The training thread waits for a GPU that does not answer, so nothing can be cleaned up. The text
 * names this rank. */
static void lost(void *context, const char *why)
{
	char line[sizeof((struct error *)0)->text + 32];

	snprintf(line, sizeof line, "berth-train: error: %s", why);
	((struct output *)context)->screen.quiet = false;
	note(context, line);
	_exit(ERR_NETWORK);
}

/* Report to the launcher which checkpoint the job can resume from if it fails. */
static void saved(void *context, const char *path, int64_t step)
{
	const struct output *output = context;
	json_t *report =
		json_pack("{s:o, s:I, s:s}", "saved", json_text(path), "step", (json_int_t)step,
			  "next", "the same command resumes from the checkpoint");
	char *text = report ? json_dumps(report, 0) : NULL;
	struct error err;

	if (text && output->report &&
	    file_write_atomic(output->report, text, strlen(text), 0666, &err)) {
		error_prefix(&err, "berth-train: warning");
		note(context, err.text);
	}
	free(text);
	json_decref(report);
}

static int fail(const struct ranks_place *place, const struct error *err)
{
	fflush(stdout);
	if (!err->text[0]) /* another rank reports it */
		return err->code ? err->code : ERR_INTERNAL;
	if (place->size > 1)
		fprintf(stderr, "berth-train: error: rank %d: %s\n", place->rank, err->text);
	else
		fprintf(stderr, "berth-train: error: %s\n", err->text);
	return err->code ? err->code : ERR_INTERNAL;
}

/* Used after a failure of several ranks. Threads of MPI or NCCL may still run. MPI_Finalize would
 * wait for ranks that never come. exit() would unload libraries that these threads use, so that a
 * signal might end this rank and hide its exit code. */
static _Noreturn void exit_without_cleanup(int code)
{
	fflush(NULL);
	_exit(code);
}

/* Without RANK and WORLD_SIZE this is the only rank, unless mpirun has started several. */
static int read_rank_place(const struct env *env, struct ranks_place *place, struct error *err)
{
	struct exec_place outer;

	*place = (struct ranks_place){.size = 1, .local_size = 1, .address = "127.0.0.1"};
	if (env_get(env, "RANK") || env_get(env, "WORLD_SIZE"))
		return place_from_env(env, place, err);
	if (!exec_place_outer(env, &outer) || !outer.size)
		return 0;
	return error_set(err, ERR_USAGE,
			 "%s started this berth-train as one of %d ranks, which RANK and "
			 "WORLD_SIZE do not say: put berth exec -- in front of berth-train, or use "
			 "berth train -n %d without %s",
			 outer.started_by, outer.size, outer.size, outer.started_by);
}

/* OMP_NUM_THREADS, with which berth run and other launchers set how many cores a rank has; 0:
 * unknown. */
static int cores(const struct env *env)
{
	const char *text = env_get(env, "OMP_NUM_THREADS");
	int count = 0;

	return text && !number_int("OMP_NUM_THREADS", text, 1, 4096, &count, NULL) ? count : 0;
}

/* Before OpenMP is loaded, and before there are threads. By default libgomp's idle threads spin
 * 300,000 times, 3.4 ms on the machine of docs/benchmarks.md. On cores that ranks share they take
 * the time of those that compute: a factor of 3 to 7. With 3,000, a rank alone is as fast as
 * before. */
static void limit_spinning(const struct env *env)
{
	if (!env_get(env, "OMP_WAIT_POLICY"))
		setenv("GOMP_SPINCOUNT", "3000", 0);
}

/* BERTH_END_TIME; 0: unknown. */
static int end_time(const struct env *env, int64_t *out, struct error *err)
{
	const char *text = env_get(env, "BERTH_END_TIME");

	*out = 0;
	return text && *text ? number_int64("BERTH_END_TIME", text, 0, INT64_MAX / 2, out, err) : 0;
}

/* ---- which job this is, from the environment ---- */

static const char *value_of(const struct env *env, const char *name)
{
	const char *value = env_get(env, name);

	return value ? value : "";
}

/* Read BERTH_JOB_ID, BERTH_ATTEMPT and BERTH_JOB_BEFORE (ids of the jobs that this one continues,
 * separated by commas), or else the scheduler's variables. env must outlive out: it owns the
 * strings. */
static void read_identity(const struct env *env, struct lease_identity *out)
{
	const char *ours = value_of(env, "BERTH_JOB_ID"), *slurm = value_of(env, "SLURM_JOB_ID");
	const char *theirs = *slurm ? slurm : value_of(env, "PBS_JOBID");
	int requeued;

	*out = (struct lease_identity){
		.job = *ours ? ours : theirs,
		.scheduler = *slurm    ? "slurm"
			     : *theirs ? "pbs"
				       : "",
		.predecessors = value_of(env, "BERTH_JOB_BEFORE"),
	};
	/* If BERTH_JOB_ID differs from the scheduler's id, this is berth's own job within the
	 * scheduler's. */
	if (strcmp(out->job, theirs))
		out->scheduler = "";
	if (number_int("BERTH_ATTEMPT", value_of(env, "BERTH_ATTEMPT"), 0, ATTEMPTS - 1,
		       &out->attempt, NULL))
		out->attempt = 0;
	/* A requeued job keeps its id, while BERTH_ATTEMPT restarts at 0. */
	if (!number_int("SLURM_RESTART_COUNT", value_of(env, "SLURM_RESTART_COUNT"), 0,
			INT_MAX / ATTEMPTS - 1, &requeued, NULL))
		out->attempt += requeued * ATTEMPTS;
}

static int print_order(const struct train_arguments *arguments, const struct ranks_place *place,
		       struct error *err)
{
	const struct dataset_request request = {
		.spec = arguments->options.data,
		.split = SPLIT_TRAIN,
		.seed = arguments->options.seed,
		.augment = arguments->options.augment,
		.image_size = arguments->options.image_size,
		.module_path = arguments->options.module_path,
	};
	struct dataset *data;
	struct sampler sampler;
	int rc;

	if (place->rank)
		return 0;
	rc = dataset_open(&request, &data, err);
	if (rc)
		return rc;
	sampler_init(&sampler, arguments->options.seed, data->count, true);
	rc = sampler_begin(&sampler, arguments->epoch, place->size, err);
	for (int rank = 0; !rc && rank < place->size; rank++) {
		printf("rank %d:", rank);
		for (int64_t i = 0, at = rank; i < arguments->print_order && at < sampler.total;
		     i++, at += place->size)
			printf(" %" PRIu32, sampler.permutation[at]);
		printf("\n");
	}
	sampler_free(&sampler);
	dataset_close(data);
	return rc;
}

/* Print the result, where the files are, and what to run next. */
static void summary(const struct train_options *options, const struct ranks_place *place,
		    const struct train_result *result)
{
	printf("%s %s on %s: %" PRId64 " step%s, %d rank%s\n",
	       result->stopped	 ? "stopped training"
	       : result->samples ? "trained"
				 : "already trained:",
	       options->model, options->data, result->steps, result->steps == 1 ? "" : "s",
	       place->size, place->size == 1 ? "" : "s");
	if (result->evaluated || result->samples)
		printf("loss %.4f", result->loss);
	if (result->evaluated && result->classified)
		printf("  Acc@1 %.2f %%  Acc@5 %.2f %%", result->acc1, result->acc5);
	if (result->samples)
		printf("  %.0f images/s", result->images_per_s);
	if (result->evaluated || result->samples)
		printf("\n");
	if (result->checkpoint)
		printf("checkpoint  %s\n", result->checkpoint);
	if (result->metrics)
		printf("metrics     %s\nto view     tensorboard --logdir %.*s\n", result->metrics,
		       (int)(strrchr(result->metrics, '/') - result->metrics), result->metrics);
	if (result->stopped)
		printf("reason      %s\nto resume   run the same command again\n",
		       result->stop_why);
	else if (result->checkpoint && options->steps > 0 && result->steps >= options->steps)
		printf("to resume   run the same command with --steps %" PRId64 "\n",
		       options->steps * 2);
	else if (result->checkpoint)
		printf("to resume   run the same command with --epochs %" PRId64 "\n",
		       options->epochs * 2);
}

int main(int argc, char **argv)
{
	static const struct arguments_command command = {
		.tables = {{train_options_table, 0, train_arguments_add_given}},
		.positional = {.type = ARGUMENTS_READ, .read = train_arguments_add_model},
		.check = train_arguments_check,
		.usage = "MODEL",
		.doc = "Train MODEL (convnet, linear, resnet18, resnet34, resnet50, resnet101 or "
		       "resnet152) as one rank of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and "
		       "MASTER_PORT, or alone. berth train starts all ranks.\v"
		       "Ends with 0, or one of berth's codes: 64 usage, 65 bad data or a loss that "
		       "is not finite, 66 input missing, 69 something needed is unavailable, 73 "
		       "output cannot be created, 74 writing failed, 75 stopped early with a "
		       "checkpoint saved, 76 another rank or the network failed.",
	};
	struct train_arguments arguments;
	struct output output = {0};
	const struct train_sink sink = {&output, progress, note, status, lost, saved};
	struct train_result result = {0};
	struct ranks_place place = {.size = 1};
	struct lease_identity self;
	struct error err = {0};
	struct env *env = env_capture();
	int rc;

	argp_program_version = "berth-train " BERTH_VERSION;
	train_arguments_default(&arguments);
	arguments_parse(&command, argc, argv, &arguments);
	rc = env ? log_configure(env_get(env, "BERTH_LOG"), &err)
		 : error_memory(&err, "the environment");
	if (!rc) {
		limit_spinning(env);
		rc = read_rank_place(env, &place, &err);
	}
	log_set_identity(NULL, place.rank);
	screen_open(&output.screen, env, !rc && !place.rank && !arguments.print_order);
	if (!rc) {
		arguments.options.cores = cores(env);
		arguments.options.env = env;
		arguments.options.module_path = env_get(env, "BERTH_MODULE_PATH");
		read_identity(env, &self);
		arguments.options.checkpoint.self = &self;
		train_heartbeat_open(env_get(env, "BERTH_HEARTBEAT_FILE"));
		output.report = env_get(env, "BERTH_REPORT");
		arguments.options.stop_file = env_get(env, "BERTH_STOP_FILE");
		arguments.options.end_file = env_get(env, "BERTH_END_TIME_FILE");
		rc = end_time(env, &arguments.options.end_time, &err);
	}
	if (!rc) {
		/* Without a checkpoint directory a signal ends the process, as usual. */
		if (arguments.options.checkpoint.directory)
			stop_catch_signals(arguments.options.stop_file);
		rc = train_defaults(&arguments.options, &err);
	}
	if (!rc && arguments.print_order)
		rc = print_order(&arguments, &place, &err);
	else if (!rc)
		rc = train_run(&arguments.options, &place, &sink, &result, &err);
	screen_close(&output.screen);
	if (!rc && !arguments.print_order && !place.rank)
		summary(&arguments.options, &place, &result);
	if (!rc && fflush(stdout))
		rc = error_set(&err, ERR_IO, "cannot write to standard output");

	bool failed = rc != 0;

	if (failed)
		rc = fail(&place, &err);
	else if (result.stopped)
		rc = ERR_STOPPED;
	if (failed && place.size > 1)
		exit_without_cleanup(rc);
	train_result_free(&result);
	train_arguments_free(&arguments);
	env_free(env);
	return rc;
}
