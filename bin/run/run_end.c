/* SPDX-License-Identifier: BSD-3-Clause */
/* A job's end time, and why a job has ended. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/pbs.h"
#include "alloc/scheduler_tool.h"
#include "alloc/slurm.h"
#include "base/json.h"
#include "base/log.h"
#include "base/number.h"
#include "explain/explain.h"
#include "run/run.h"

#define QUERY_MS 2000
#define ANSWER_MAX (1 << 20)
/* How early a signal may be and still mean the time limit. The user or Slurm's --signal may warn
 * the job; Slurm is up to 60 s early then. */
#define EARLY_S 90
/* PBS sends nothing before the limit, so this is for clocks that differ. The same if Slurm does not
 * answer: a job that its user has deleted must not be requeued. */
#define EXACT_S 3

/* "+90m", or Unix seconds. */
static int read_end(const char *name, const char *text, int64_t now, int64_t *out,
		    struct error *err)
{
	int64_t ms;

	if (*text != '+' && !number_int64(name, text, 1, INT64_MAX / 2000, out, NULL))
		return 0;
	if (*text != '+' || number_duration_ms(name, text + 1, &ms, NULL))
		return error_set(err, ERR_USAGE,
				 "%s is '%.100s': expected a time from now (+90m, +2h, +1d), or "
				 "Unix seconds, as printed by date -d 'tomorrow 8:00' +%%s",
				 name, text);
	*out = now + ms / 1000;
	return 0;
}

int run_end_time(struct run_setup *setup, struct error *err)
{
	struct alloc *alloc = &setup->alloc;
	const char *name = "--end-time", *text = setup->options->end_time;
	int64_t now = (int64_t)time(NULL), end = 0;
	char past[400];
	int rc;

	if (!text) {
		name = "BERTH_END_TIME";
		text = env_get(setup->env, name);
	}
	if (text && *text) {
		rc = read_end(name, text, now, &end, err);
		if (rc) {
			err->code = ERR_USAGE;
			return -ERR_USAGE;
		}
		if (end <= now)
			return error_set(err, ERR_USAGE,
					 "%s %s was %lld s ago by this machine's clock (now: "
					 "%lld); set a future time, or none",
					 name, text, (long long)(now - end), (long long)now);
		alloc->end_time = end;
		alloc->end_given = true;
		free(alloc->end_reason);
		alloc->end_reason = strdup(name);
	} else if (alloc_drop_past_end(alloc, past, sizeof past)) {
		log_user(LOG_WARNING, "%s", past);
	}
	return 0;
}

int run_remove_stale_stop_file(const struct run_setup *setup, struct error *err)
{
	const char *path = env_get(setup->env, "BERTH_STOP_FILE");
	bool dry = setup->options->dry_run;
	struct stat info;

	if (!path || !*path || lstat(path, &info))
		return 0;
	if (!dry && unlink(path) && errno != ENOENT)
		return error_set(err, ERR_OUTPUT,
				 "cannot remove the stop file %s of an earlier run: %s", path,
				 strerror(errno));
	if (!setup->options->quiet)
		log_user(LOG_WARNING,
			 "the stop file %s already existed, created %lld s ago: it %s "
			 "removed, because this run would otherwise stop at once; create it again "
			 "to stop the run",
			 path, (long long)(time(NULL) - info.st_mtime), dry ? "will be" : "is");
	return 0;
}

/* Who holds a lock on the file? 0: unknown. */
static int find_holder(const struct stat *file)
{
	FILE *locks = fopen("/proc/locks", "re");
	unsigned long long inode;
	char line[200];
	int pid, found = 0;

	while (locks && !found && fgets(line, sizeof line, locks))
		if (sscanf(line, "%*d: FLOCK %*s %*s %d %*x:%*x:%llu", &pid, &inode) == 2 &&
		    inode == file->st_ino && pid > 0)
			found = pid;
	if (locks)
		fclose(locks);
	return found;
}

int run_lock_log_dir(const char *log_dir, struct error *err)
{
	int fd = open(log_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), pid;
	struct stat status;
	char by[40] = "";

	/* Not every file system can lock directories. */
	if (fd < 0 || !flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK)
		return 0;
	pid = fstat(fd, &status) ? 0 : find_holder(&status);
	close(fd);
	if (pid)
		snprintf(by, sizeof by, " (process %d)", pid);
	return error_set(err, ERR_OUTPUT,
			 "--log-dir %.200s: another run%s writes there; give each run a directory "
			 "of its own",
			 log_dir, by);
}

/* ---- why ---- */

/* Ask Slurm why the job received a signal or lost a node: the kind of its end, "" if the job simply
 * runs, or NULL if Slurm does not answer. *left_ms: the time left as known so far; updated. */
static const char *query_slurm(const struct run_setup *setup, int64_t *left_ms)
{
	char *const argv[] = {(char *)"scontrol", (char *)"-o",	       (char *)"show",
			      (char *)"job",	  setup->alloc.job_id, NULL};
	struct scheduler_tool_output answer;
	char state[40], preempt[40], restarts[40];
	int64_t left;

	if (scheduler_tool_run(argv, setup->env, QUERY_MS, ANSWER_MAX, &answer) !=
	    SCHEDULER_TOOL_EXITED)
		return NULL;
	slurm_job_field(answer.text, "JobState", state, sizeof state);
	slurm_job_field(answer.text, "PreemptTime", preempt, sizeof preempt);
	slurm_job_field(answer.text, "Restarts", restarts, sizeof restarts);
	/* Slurm counts at once. The job's times are then those of its next start. */
	if (atoi(restarts) <= setup->alloc.restarts && !slurm_job_time_left(answer.text, &left))
		*left_ms = left * 1000;
	free(answer.text);
	if (atoi(restarts) > setup->alloc.restarts)
		return "requeued";
	if (!strncmp(state, "CANCELLED", 9))
		return "cancelled";
	if (!strncmp(state, "PREEMPTED", 9) || (preempt[0] >= '0' && preempt[0] <= '9'))
		return "preempted";
	if (!strncmp(state, "TIMEOUT", 7))
		return "walltime";
	/* While Slurm waits for the ranks, it shows only this. It never enforces the limit early.
	 */
	if (!strncmp(state, "COMPLETING", 10))
		return *left_ms > 0 ? "cancelled" : "walltime";
	return *state ? "" : NULL;
}

/* The kind of end that OpenPBS reports, or NULL. After qdel the comment is "Job run at ... and
 * terminated by USER@HOST", and after qdel -W force the server does not know the job. Substates 60
 * to 63 are those of qrerun. */
static const char *query_pbs(const struct run_setup *setup)
{
	char path[600], why[400];
	char *argv[] = {path,		(char *)"-f",	     (char *)"-F",
			(char *)"json", setup->alloc.job_id, NULL};
	struct scheduler_tool_output answer;

	if (pbs_find_tool(setup->env, "qstat", path, sizeof path) ||
	    scheduler_tool_run(argv, setup->env, QUERY_MS, ANSWER_MAX, &answer) !=
		    SCHEDULER_TOOL_EXITED)
		return NULL;
	JSON_AUTO job = pbs_attributes(answer.text, setup->alloc.job_id, why, sizeof why);
	const char *comment = json_string_value(json_object_get(job, "comment"));
	json_int_t substate = json_integer_value(json_object_get(job, "substate"));

	free(answer.text);
	if (job ? comment && strstr(comment, "terminated by")
		: strstr(answer.stderr_text, " Job ") != NULL)
		return "cancelled";
	return substate >= 60 && substate <= 63 ? "requeued" : NULL;
}

static const char *kind_of_signal(const struct run_setup *setup, int64_t *left_ms)
{
	const char *kind = NULL;
	int64_t given_ms = *left_ms;
	int early_s = EARLY_S;

	if (setup->alloc.source == ALLOC_FROM_SLURM) {
		kind = query_slurm(setup, left_ms);
		if (setup->alloc.end_given)
			*left_ms = given_ms;
		if (kind && *kind)
			return kind;
		early_s = kind ? EARLY_S : EXACT_S;
	} else if (setup->alloc.source == ALLOC_FROM_PBS) {
		kind = query_pbs(setup);
		if (kind)
			return kind;
		early_s = EXACT_S;
	}
	return *left_ms < early_s * 1000 ? "walltime" : "interrupted";
}

/* Agents also end while Slurm ends a job that it has requeued. otherwise: what it is if not. */
static const char *kind_of_loss(const struct run_setup *setup, const char *otherwise,
				int64_t *left_ms)
{
	const char *kind =
		setup->alloc.source == ALLOC_FROM_SLURM ? query_slurm(setup, left_ms) : NULL;

	return kind && (!strcmp(kind, "requeued") || !strcmp(kind, "preempted")) ? kind : otherwise;
}

static void describe_cause(const struct job_result *result, const char *kind, int64_t left_ms,
			   bool own_program, char *why, size_t size)
{
	const char *name = strsignal(result->interrupted);
	long left = left_ms == INT64_MAX ? 0 : (long)(left_ms / 1000);

	if (!strcmp(kind, "preempted"))
		snprintf(why, size, "Slurm preempted the job: another job now has its nodes%s%s%s",
			 result->interrupted ? " (received signal: " : "",
			 result->interrupted ? name : "", result->interrupted ? ")" : "");
	else if (!strcmp(kind, "requeued"))
		snprintf(why, size,
			 "the scheduler has requeued the job: it was preempted, one of its nodes "
			 "failed, or someone called scontrol requeue or qrerun");
	else if (!strcmp(kind, "walltime") && result->interrupted)
		snprintf(why, size,
			 "the job reached its time limit: the scheduler sent %s %ld s %s the end "
			 "time",
			 name, labs(left), left < 0 ? "after" : "before");
	else if (!strcmp(kind, "cancelled") && result->interrupted)
		snprintf(why, size, "the job was cancelled (received signal: %s)", name);
	else if (!strcmp(kind, "interrupted"))
		snprintf(why, size, "berth received a signal from %s: %s",
			 result->sender[0] ? result->sender : "the user or the scheduler", name);
	else if (result->user_signal &&
		 (!strcmp(kind, "stopped") || result->signal == result->user_signal))
		snprintf(why, size,
			 "berth received SIG%s (from the user, scancel --signal or #SBATCH "
			 "--signal) and forwarded it to the ranks",
			 error_signal_name(result->user_signal));
	else if (!strcmp(kind, "stopped") && result->warned)
		snprintf(why, size,
			 "the job's time limit is near, so berth asked the ranks to save");
	else if (!strcmp(kind, "oom"))
		snprintf(
			why, size,
			"the job ran out of memory: request more, or use less (%s, fewer ranks per "
			"node)",
			own_program ? "smaller --batch, fewer --workers"
				    : "smaller batches, fewer data loader workers");
}

static const struct explain_row *find_known_failure(const json_t *output_tail)
{
	const struct explain_row *known = NULL;
	bool in_child = false;

	for (size_t i = 0; i < json_array_size(output_tail); i++)
		in_child |= explain_is_child(json_string_value(json_array_get(output_tail, i)));
	for (size_t i = 0; !known && i < json_array_size(output_tail); i++)
		known = explain_line(json_string_value(json_array_get(output_tail, i)), in_child);
	return known;
}

void run_end_find(const struct run_setup *setup, const struct job_result *result,
		  struct run_end *out)
{
	int64_t left_ms = result->time_left_known ? result->time_left_ms : INT64_MAX;

	*out = (struct run_end){.kind = "ended"};
	if (!result->code)
		return;
	if (result->code != ERR_STOPPED)
		out->known = find_known_failure(result->output_tail);
	if (result->by_program && result->code != ERR_STOPPED && !result->signal)
		explain_exception(result->traceback ? result->traceback : result->output_tail,
				  &out->exception);
	if (result->interrupted && setup->alloc.source)
		out->kind = kind_of_signal(setup, &left_ms);
	else if (result->cancelled)
		out->kind = kind_of_loss(setup, "cancelled", &left_ms);
	else if (result->code == ERR_STOPPED)
		out->kind = "stopped";
	else if (result->lost_node)
		out->kind = kind_of_loss(setup, "node", &left_ms);
	else if (result->oom)
		out->kind = "oom";
	else if (!result->by_program)
		out->kind = "berth";
	else
		out->kind = result->signal ? "signal" : "code";
	describe_cause(result, out->kind, left_ms, setup->own_program, out->why, sizeof out->why);
	if (!strcmp(out->kind, "requeued"))
		snprintf(out->next, sizeof out->next,
			 "nothing to do: the scheduler will start the job again");
	else if (result->next)
		snprintf(out->next, sizeof out->next, "%s", result->next);
	else if (result->code == ERR_STOPPED)
		snprintf(out->next, sizeof out->next,
			 "submit the job again: it resumes from the checkpoint");
}
