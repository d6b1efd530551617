/* SPDX-License-Identifier: BSD-3-Clause */
/* Submits a PBS job again: MoM's copy of the script, with the resources, queue and variables that
 * qstat reports. qsub does not read its #PBS lines again (-C). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/pbs.h"
#include "alloc/scheduler_tool.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "run/requeue.h"

#define SUBMIT_MS 60000
#define ANSWER_MAX (1 << 20)
#define SCRIPT_MAX (1 << 20)
#define SCRIPT "BERTH_REQUEUE_SCRIPT" /* for qsub's command line; the job does not get it */

struct requeue_pbs {
	char *script;
	size_t script_size;
	char *line; /* see requeue_pbs_line */
	char **argv;
	struct env *env; /* with the job's variables in it */
};

void requeue_pbs_free(struct requeue_pbs *pbs)
{
	if (!pbs)
		return;
	free(pbs->script);
	free(pbs->line);
	free(pbs->argv);
	env_free(pbs->env);
	free(pbs);
}

/* ---- the script ---- */

/* MoM's copy is what runs; the file that qsub was given may be another one by now. */
static int read_script(const struct alloc *alloc, const struct env *env, const json_t *job,
		       struct requeue_pbs *pbs, char *why, size_t size)
{
	const char *submitted = json_string_value(json_object_get(job, "Submit_arguments"));
	const char *last = submitted ? strrchr(submitted, ' ') : NULL;
	char home[512] = "/var/spool/pbs", path[1024];

	pbs_conf(env, "PBS_HOME", home, sizeof home);
	snprintf(path, sizeof path, "%s/mom_priv/jobs/%s.SC", home, alloc->job_id);
	if (!file_read(path, SCRIPT_MAX, &pbs->script, &pbs->script_size, NULL))
		return 0;
	if (submitted && (strstr(submitted, " -- ") || !strncmp(submitted, "-- ", 3))) {
		snprintf(why, size, "it has no script (qsub -- PROGRAM): submit it with one");
		return 1;
	}
	last = last ? last + 1 : submitted;
	/* The last argument is the script. Which file a relative path means is not known here. */
	last = last && *last == '/' ? last : NULL;
	if (last && !file_read(last, SCRIPT_MAX, &pbs->script, &pbs->script_size, NULL))
		return 0;
	snprintf(why, size, "cannot read its script: %s%s%s%s", last ? "neither " : "", path,
		 last ? " nor " : "", last ? last : "");
	return 1;
}

/* ---- what qstat names ---- */

/* Sums over the chunks, which select already contains. */
static bool is_sum(const char *name, const char *select)
{
	static const char *const sums[] = {
		"select", "place", "ncpus", "nodect", "nodes",	  "mpiprocs", "ompthreads",
		"mem",	  "vmem",  "pmem",  "pvmem",  "walltime", "mpphost",  "naccelerators"};
	char in_chunk[80];

	for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
		if (!strcmp(name, sums[i]))
			return true;
	snprintf(in_chunk, sizeof in_chunk, ":%s=", name);
	return select && strstr(select, in_chunk);
}

static void add_resource(struct words *qsub, const char *name, const json_t *value)
{
	if (!json_is_string(value) && !json_is_integer(value))
		return;
	words_add(qsub, "-l");
	if (json_is_string(value))
		words_add(qsub, "%s=%s", name, json_string_value(value));
	else
		words_add(qsub, "%s=%lld", name, (long long)json_integer_value(value));
}

static void add_resources(struct words *qsub, json_t *list)
{
	const char *select = json_string_value(json_object_get(list, "select")), *name;
	const char *first[] = {"select", "place", "walltime"};
	json_t *value;

	for (size_t i = 0; i < sizeof first / sizeof *first; i++)
		add_resource(qsub, first[i], json_object_get(list, first[i]));
	json_object_foreach(list, name, value) if (!is_sum(name, select))
		add_resource(qsub, name, value);
}

static void add_attributes(struct words *qsub, const json_t *job)
{
	/* An option that ends in = is an attribute of -W. */
	static const struct {
		const char *name, *option, *without; /* the value that means "unset" */
	} list[] = {
		{"Job_Name", "-N", ""},
		{"queue", "-q", ""},
		{"Account_Name", "-A", ""},
		{"project", "-P", "_pbs_project_default"},
		{"Join_Path", "-j", "n"},
		{"Keep_Files", "-k", "n"},
		{"Remove_Files", "-R", "n"},
		{"Mail_Points", "-m", "a"},
		{"Mail_Users", "-M", ""},
		{"Priority", "-p", "0"},
		{"Checkpoint", "-c", "u"},
		{"Shell_Path_List", "-S", ""},
		{"group_list", "group_list=", ""},
		{"umask", "umask=", ""},
		{"sandbox", "sandbox=", "HOME"},
		{"stagein", "stagein=", ""},
		{"stageout", "stageout=", ""},
		{"tolerate_node_failures", "tolerate_node_failures=", "none"},
		{"release_nodes_on_stageout", "release_nodes_on_stageout=", "False"},
	};
	const char *rerun = json_string_value(json_object_get(job, "Rerunable"));

	for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
		const json_t *value = json_object_get(job, list[i].name);
		const char *option = list[i].option, *text = json_string_value(value);
		char number[32];

		if (json_is_integer(value)) {
			snprintf(number, sizeof number, "%lld",
				 (long long)json_integer_value(value));
			text = number;
		}
		if (!text || !*text || !strcmp(text, list[i].without))
			continue;
		words_add(qsub, "%s", *option == '-' ? option : "-W");
		words_add(qsub, "%s%s", *option == '-' ? "" : option, text);
	}
	if (rerun && !strcmp(rerun, "False"))
		words_add_list(qsub, (const char *const[]){"-r", "n", NULL});
}

/* In a directory, PBS names the file after the job. path: "HOST:PATH" */
static bool is_directory(const char *path)
{
	const char *colon = strchr(path, ':');
	struct stat info;

	return path[strlen(path) - 1] == '/' ||
	       (!stat(colon ? colon + 1 : path, &info) && S_ISDIR(info.st_mode));
}

/* Output paths that the user has chosen; PBS's default paths contain the job's number. */
static void add_outputs(struct words *qsub, const json_t *job, const char *job_id)
{
	const char *const list[][3] = {{"Output_Path", "-o", ".o"}, {"Error_Path", "-e", ".e"}};

	for (size_t i = 0; i < 2; i++) {
		const char *path = json_string_value(json_object_get(job, list[i][0]));
		char own[80];
		size_t length;

		snprintf(own, sizeof own, "%s%.*s", list[i][2], (int)strcspn(job_id, ".["), job_id);
		length = strlen(own);
		if (!path || strlen(path) < length || !strcmp(path + strlen(path) - length, own))
			continue;
		words_add_list(qsub, (const char *const[]){list[i][1], path, NULL});
		if (!is_directory(path))
			log_user(LOG_WARNING,
				 "--requeue: the next job overwrites %s (qsub %s); to keep the "
				 "output "
				 "of each job, omit %s or give it a directory",
				 path, list[i][1], list[i][1]);
	}
}

/* Moving them with qalter does not help: at the end of the old job the server still deletes those
 * that waited for it with afterok (seen with OpenPBS of April 2026). */
static void warn_dependants(const json_t *job)
{
	const char *depend = json_string_value(json_object_get(job, "depend"));
	const char *at = depend ? strstr(depend, "before") : NULL;

	if (at)
		log_user(
			LOG_WARNING,
			"--requeue: jobs wait for this one (%.120s): they see its end, not that of "
			"the next job. PBS then deletes those with afterok and starts those with "
			"afterany. Let the job script submit them when berth run has exited with 0",
			at);
}

/* Was the job submitted with this variable? MoM and the site's hooks add others to its environment.
 * qstat -F json appends the variable after a value that ends in a backslash to that value. */
static bool is_submitted(json_t *list, const char *name)
{
	size_t length = strlen(name);
	const char *other;
	json_t *value;

	json_object_foreach(list, other, value)
	{
		const char *at = json_string_value(value);

		if (!strcmp(other, name))
			return true;
		for (; at && (at = strstr(at, "\\,")); at += 2)
			if (!strncmp(at + 2, name, length) && at[2 + length] == '=')
				return true;
	}
	return false;
}

/* Pass only the names; qsub takes the values from its environment. What qsub would change goes into
 * the script. first: the environment in which the job's script started. */
static int add_variables(struct requeue_pbs *pbs, struct words *qsub, const struct env *first,
			 json_t *list, const char *job_id, int done, struct error *err)
{
	struct words names = {0}, changed = {0};
	struct bytes lines = {0};
	char count[16], *text;
	bool shell = requeue_script_is_shell(pbs->script);
	int rc;

	snprintf(count, sizeof count, "%d", done + 1);
	rc = env_set(pbs->env, "BERTH_REQUEUES", count, ENV_FROM_BERTH, NULL, err);
	if (!rc)
		rc = env_set(pbs->env, "BERTH_REQUEUE_OF", job_id, ENV_FROM_BERTH, NULL, err);
	words_add(&names, "BERTH_REQUEUES,BERTH_REQUEUE_OF");
	for (size_t i = 0; !rc && i < env_count(first); i++) {
		const char *name = env_at(first, i)->name, *value = env_at(first, i)->value;
		bool plain = value && requeue_script_is_plain(name, value),
		     by_qsub = plain || !shell;

		if (!value || !strncmp(name, "PBS_", 4) || !strncmp(name, "BERTH_REQUEUE", 13) ||
		    !is_submitted(list, name))
			continue;
		if (!plain)
			words_add(&changed, "%s", name);
		if (by_qsub) {
			words_add(&names, "%s", name);
			rc = env_set(pbs->env, name, value, ENV_FROM_USER, NULL, err);
		} else if (!requeue_script_add(&lines, name, value)) {
			rc = error_memory(err, "the job's variables");
		}
	}
	if (!rc && lines.size && requeue_script_insert(&lines, &pbs->script, &pbs->script_size))
		rc = error_memory(err, "the job's script");
	text = words_join(&changed, ',');
	if (!shell && text && *text)
		log_user(LOG_WARNING,
			 "--requeue: qsub may change the values of %s in the next job, because no "
			 "POSIX shell runs the job script",
			 text);
	free(text);
	text = words_join(&names, ',');
	words_add_list(qsub, (const char *const[]){"-v", text, NULL});
	qsub->failed |= !text;
	free(text);
	bytes_free(&lines);
	return rc;
}

/* ---- requeue.h ---- */

static int possible(const struct alloc *alloc, const struct env *env, char qsub[600], char *why,
		    size_t size)
{
	const char *kind = env_get(env, "PBS_ENVIRONMENT");

	if (kind && !strcmp(kind, "PBS_INTERACTIVE"))
		snprintf(why, size, "it is an interactive job (qsub -I), which has no script");
	else if (alloc->array_task)
		snprintf(why, size,
			 "a single task of a job array cannot be submitted again: submit separate "
			 "jobs instead");
	else if (pbs_find_tool(env, "qsub", qsub, 600))
		snprintf(why, size,
			 "qsub not found on this node (neither in PATH nor in PBS_EXEC)");
	else
		return 0;
	return 1;
}

int requeue_pbs_prepare(struct alloc_query *query, int done, struct requeue_pbs **out, char *why,
			size_t size)
{
	static const char call[] = "cd \"$0\" && exec \"$@\" \"$" SCRIPT "\"";
	const struct alloc *alloc = query->alloc;
	const struct env *env = query->env;
	struct requeue_pbs *pbs = calloc(1, sizeof *pbs);
	const char *dir = env_get(env, "PBS_O_WORKDIR"), *submitted;
	char path[600];
	struct words qsub = {0};
	struct env *first = requeue_script_environment(env);
	struct error err = {0};
	JSON_AUTO job = NULL;
	int rc;

	if (!pbs || !first) {
		snprintf(why, size, "not enough memory");
		free(pbs);
		env_free(first);
		return 1;
	}
	rc = possible(alloc, env, path, why, size);
	if (!rc && !query->job)
		rc = snprintf(why, size, "%s", query->why) || true;
	else if (!rc && !(job = pbs_attributes(query->job, alloc->job_id, why, size)))
		rc = 1;
	*out = pbs;
	pbs->env = env_copy(env);
	submitted = json_string_value(json_object_get(job, "Submit_arguments"));
	pbs->line = text_format("cd %s && qsub %s", dir ? dir : "/",
				submitted && *submitted ? submitted : "SCRIPT");
	if (!pbs->env || !pbs->line)
		rc = snprintf(why, size, "not enough memory") || true;
	if (!rc)
		rc = read_script(alloc, env, job, pbs, why, size);
	if (rc)
		goto out;
	/* The directory of the first qsub becomes PBS_O_WORKDIR. The script's #PBS lines have had
	 * their effect. */
	words_add_list(&qsub, (const char *const[]){"sh", "-c", call, dir ? dir : "/", path, "-C",
						    "#no-directives", NULL});
	add_resources(&qsub, json_object_get(job, "Resource_List"));
	add_attributes(&qsub, job);
	add_outputs(&qsub, job, alloc->job_id);
	warn_dependants(job);
	/* Start only after this job has ended, because both would write the same checkpoints. */
	words_add(&qsub, "-W");
	words_add(&qsub, "depend=afterany:%s", alloc->job_id);
	rc = add_variables(pbs, &qsub, first, json_object_get(job, "Variable_List"), alloc->job_id,
			   done, &err);
	pbs->argv = words_end(&qsub);
	if (!rc && !pbs->argv)
		rc = error_memory(&err, "qsub's command line");
	if (rc)
		snprintf(why, size, "%s", err.text);
out:
	env_free(first);
	return rc != 0;
}

/* The script as a file for qsub, which reads it at once. */
static int write_script(const struct requeue_pbs *pbs, char *path, size_t size)
{
	const char *dir = env_get(pbs->env, "TMPDIR");
	int fd, failed;

	snprintf(path, size, "%s/berth-requeue-XXXXXX", dir && *dir == '/' ? dir : "/tmp");
	fd = mkstemp(path);
	if (fd < 0) {
		snprintf(path, size, "/tmp/berth-requeue-XXXXXX");
		fd = mkstemp(path);
	}
	if (fd < 0)
		return -1;
	failed = file_write_all(fd, pbs->script, pbs->script_size);
	close(fd);
	if (failed)
		unlink(path);
	return failed;
}

const char *requeue_pbs_line(const struct requeue_pbs *pbs)
{
	return pbs->line;
}

enum requeue_try requeue_pbs_submit(struct requeue_pbs *pbs, char *reply, size_t size)
{
	char script[600];
	struct scheduler_tool_output answer;
	enum scheduler_tool_result end;
	enum requeue_try result;

	if (write_script(pbs, script, sizeof script) ||
	    env_set(pbs->env, SCRIPT, script, ENV_FROM_BERTH, NULL, NULL)) {
		snprintf(reply, size, "cannot write its script to %s", script);
		return REQUEUE_TRY_REFUSED;
	}
	end = scheduler_tool_run(pbs->argv, pbs->env, SUBMIT_MS, ANSWER_MAX, &answer);
	unlink(script);
	/* The shell's codes for a program that it cannot start. */
	if (end == SCHEDULER_TOOL_UNAVAILABLE ||
	    (end == SCHEDULER_TOOL_EXITED && (answer.code == 126 || answer.code == 127))) {
		if (end == SCHEDULER_TOOL_EXITED)
			free(answer.text);
		snprintf(reply, size, "it cannot be started now");
		return REQUEUE_TRY_AWAY;
	}
	if (end == SCHEDULER_TOOL_TIMEOUT) {
		snprintf(reply, size,
			 "no answer within %d s (the job may have been submitted: check with qstat "
			 "first)",
			 SUBMIT_MS / 1000);
		/* Not to be tried again: the job might be submitted twice. */
		return REQUEUE_TRY_REFUSED;
	}
	answer.text[strcspn(answer.text, "\n")] = '\0';
	snprintf(reply, size, "%s", answer.code ? answer.stderr_text : answer.text);
	result = answer.code ? requeue_try_failed(reply) : REQUEUE_TRY_DONE;
	free(answer.text);
	return result;
}
