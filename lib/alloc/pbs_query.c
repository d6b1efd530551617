/* SPDX-License-Identifier: BSD-3-Clause */
/* What only the PBS server knows: when the job ends, how often it was started, GPUs per node,
 * kill_delay. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/pbs.h"
#include "alloc/query.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "base/number.h"

#define ANSWER_MAX (4 << 20) /* a job of ten thousand chunks has an exec_vnode of 1 MB */
#define CONF_MAX 65536
#define KILL_DELAY_MAX_S 86400

/* ---- reading an answer ---- */

/* The attributes that are kept; Torque uses other names for some. */
static const struct {
	const char *name;
	size_t offset; /* of the member in struct pbs_job_info */
} attributes[] = {
	{"Resource_List.walltime", offsetof(struct pbs_job_info, walltime)},
	{"Resource_List.select", offsetof(struct pbs_job_info, select)},
	{"stime", offsetof(struct pbs_job_info, start)},
	{"start_time", offsetof(struct pbs_job_info, start)},
	{"run_count", offsetof(struct pbs_job_info, run_count)},
	{"Walltime.Remaining", offsetof(struct pbs_job_info, remaining)},
	{"exec_host", offsetof(struct pbs_job_info, exec_host)},
	{"start_count", offsetof(struct pbs_job_info, run_count)},
	{"exec_vnode", offsetof(struct pbs_job_info, exec_vnode)},
	{"queue", offsetof(struct pbs_job_info, queue)},
};
#define ATTRIBUTES (sizeof attributes / sizeof *attributes)

static char **member(struct pbs_job_info *answer, size_t attribute)
{
	return (char **)((char *)answer + attributes[attribute].offset);
}

void pbs_job_info_free(struct pbs_job_info *answer)
{
	for (size_t i = 0; answer && i < ATTRIBUTES; i++) {
		free(*member(answer, i));
		*member(answer, i) = NULL;
	}
}

static int keep_value(struct pbs_job_info *answer, const char *name, const char *value,
		      struct error *err)
{
	size_t i = 0;

	while (i < ATTRIBUTES && strcasecmp(attributes[i].name, name))
		i++;
	if (i == ATTRIBUTES || *member(answer, i))
		return 0;
	*member(answer, i) = strdup(value);
	return *member(answer, i) ? 0 : error_memory(err, "qstat's output");
}

static int read_member(struct pbs_job_info *answer, const char *name, const json_t *value,
		       struct error *err)
{
	char number[32];

	if (json_is_string(value))
		return keep_value(answer, name, json_string_value(value), err);
	if (!json_is_integer(value))
		return 0;
	snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
	return keep_value(answer, name, number, err);
}

static int read_json(const char *text, const char *job_id, struct pbs_job_info *out,
		     struct error *err)
{
	JSON_AUTO root = NULL;
	char name[80];
	const char *key;
	json_t *jobs, *job, *value;
	int rc = json_read("qstat's output", text, strlen(text), ANSWER_MAX, &root, err);

	if (!rc)
		rc = json_get_object("qstat's output", root, "Jobs", &jobs, err);
	if (rc)
		return rc;
	job = json_object_get(jobs, job_id);
	if (!json_is_object(job))
		return error_set(err, ERR_DATA, "qstat's output has no job %.80s", job_id);
	json_object_foreach(job, key, value) if (!rc) rc = read_member(out, key, value, err);
	json_object_foreach(json_object_get(job, "Resource_List"), key, value)
	{
		snprintf(name, sizeof name, "Resource_List.%s", key);
		if (!rc)
			rc = read_member(out, name, value, err);
	}
	return rc;
}

/* Parse "    name = value", with continuation lines already joined. */
static int read_attribute(char *line, struct pbs_job_info *out, struct error *err)
{
	char *name = line + strspn(line, " "), *equals = strstr(name, " = ");

	if (!equals)
		return 0;
	*equals = '\0';
	return keep_value(out, name, equals + 3, err);
}

/* qstat breaks lines at 79 columns and continues them after a tab. */
static void join_lines(char *text)
{
	char *to = text;

	for (const char *at = text; *at; at++) {
		if (*at == '\r')
			continue;
		if (*at == '\n' && at[1] == '\t')
			at++;
		else
			*to++ = *at;
	}
	*to = '\0';
}

static int read_plain(const char *text, const char *job_id, struct pbs_job_info *out,
		      struct error *err)
{
	char *copy = strdup(text);
	bool ours = false;
	int rc = 0;

	if (!copy)
		return error_memory(err, "qstat's output");
	join_lines(copy);
	for (char *next = copy; !rc && next;) {
		char *line = strsep(&next, "\n");

		if (!strncmp(line, "Job Id:", 7)) {
			line += 7 + strspn(line + 7, " ");
			line[strcspn(line, " ")] = '\0';
			ours = !strcmp(line, job_id);
			continue;
		}
		if (ours)
			rc = read_attribute(line, out, err);
	}
	/* Every job has a state; but without one of the kept members the answer is useless. */
	if (!rc && !out->walltime && !out->start && !out->exec_host)
		rc = error_set(err, ERR_DATA, "qstat's output has nothing about job %.80s", job_id);
	free(copy);
	return rc;
}

int pbs_job_info_read(const char *text, const char *job_id, struct pbs_job_info *out,
		      struct error *err)
{
	struct pbs_job_info made = {0};
	const char *begin = text + strspn(text, " \t\r\n");
	int rc = *begin == '{' ? read_json(begin, job_id, &made, err)
			       : read_plain(text, job_id, &made, err);

	if (rc)
		pbs_job_info_free(&made);
	else
		*out = made;
	return rc;
}

/* ---- using it ---- */

/* Parse "Sat Nov 21 02:02:31 2026" in local time; -1 on failure. Month names are always English. */
static int64_t read_ctime(const char *text)
{
	static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
	char day[4], month[4];
	struct tm tm = {.tm_isdst = -1};
	int end = 0, year;
	const char *found;

	if (sscanf(text, "%3s %3s %d %d:%d:%d %d%n", day, month, &tm.tm_mday, &tm.tm_hour,
		   &tm.tm_min, &tm.tm_sec, &year, &end) != 7 ||
	    text[end + (int)strspn(text + end, " ")])
		return -1;
	found = strstr(months, month);
	if (!found || strlen(month) != 3 || (found - months) % 3 || year < 1970 || year > 9999 ||
	    tm.tm_mday < 1 || tm.tm_mday > 31 || tm.tm_hour < 0 || tm.tm_hour > 23 ||
	    tm.tm_min < 0 || tm.tm_min > 59 || tm.tm_sec < 0 || tm.tm_sec > 60)
		return -1;
	tm.tm_mon = (int)(found - months) / 3;
	tm.tm_year = year - 1900;
	return (int64_t)mktime(&tm);
}

static void apply_times(const struct pbs_job_info *answer, struct alloc *alloc)
{
	int64_t left, walltime, started = answer->start ? read_ctime(answer->start) : -1;
	struct error err = {0};

	if (alloc->end_given)
		return;
	if (answer->walltime &&
	    pbs_duration("the job's walltime", answer->walltime, &walltime, &err)) {
		alloc_set_end_reason(alloc, "qstat: %s", err.text);
	} else if (answer->remaining &&
		   !pbs_duration("Walltime.Remaining", answer->remaining, &left, NULL)) {
		alloc->end_time = (int64_t)time(NULL) + left;
		alloc_set_end_reason(alloc, "qstat: %s s left", answer->remaining);
	} else if (answer->walltime && started > 0) {
		alloc->end_time = started + walltime;
		alloc_set_end_reason(alloc, "qstat: started %s, walltime %s", answer->start,
				     answer->walltime);
	} else if (!answer->walltime) {
		alloc_set_end_reason(alloc, "qstat: the job has no walltime");
	} else {
		alloc_set_end_reason(alloc, "qstat does not report when the job started ('%.60s')",
				     answer->start ? answer->start : "");
	}
}

static bool is_host(const char *name, const char *text, size_t size)
{
	return (strlen(name) == size && !strncasecmp(name, text, size)) ||
	       (strcspn(name, ".") == size && !strncasecmp(name, text, size));
}

static long node_of(const struct alloc *alloc, const char *text, size_t size)
{
	for (size_t i = 0; i < alloc->node_count; i++)
		if (is_host(alloc->nodes[i].name, text, size))
			return (long)i;
	return -1;
}

/* The GPUs of one chunk, "(v1:ncpus=2:ngpus=1+v2:ngpus=1)"; -1: not understood. *any: some ngpus
 * occurred. */
static long chunk_gpus(const char *text, size_t size, bool *any)
{
	static const char what[] = ":ngpus=";
	long sum = 0;

	for (size_t i = 0; i + sizeof what - 1 < size; i++) {
		char *end;
		long value;

		if (strncmp(text + i, what, sizeof what - 1))
			continue;
		value = strtol(text + i + sizeof what - 1, &end, 10);
		if (value < 0 || value > 1 << 20 || !strchr(":+)", *end))
			return -1;
		*any = true;
		sum += value;
	}
	return sum;
}

/* The i-th chunk of exec_vnode runs on the i-th host of exec_host; hosts may repeat. Unless all of
 * it is understood and every node occurs, nothing is set. */
static void apply_gpus(const struct pbs_job_info *answer, struct alloc *alloc)
{
	const char *host = answer->exec_host, *vnode = answer->exec_vnode;
	int *gpus = calloc(alloc->node_count, sizeof *gpus);
	bool any = false, fits = gpus && host && vnode;

	for (size_t i = 0; fits && i < alloc->node_count; i++)
		gpus[i] = -1;
	while (fits && *host && *vnode == '(') {
		size_t chunk = strcspn(vnode, ")"), part = strcspn(host, "+");
		long node = node_of(alloc, host, strcspn(host, "/+"));
		long count = vnode[chunk] ? chunk_gpus(vnode, chunk + 1, &any) : -1;

		fits = count >= 0 && (node < 0 || gpus[node] <= 1 << 20);
		if (!fits)
			break;
		/* --nodes may leave out nodes of the job. */
		if (node >= 0)
			gpus[node] = (int)count + (gpus[node] < 0 ? 0 : gpus[node]);
		host += part + (host[part] == '+');
		vnode += chunk + 1;
		vnode += *vnode == '+';
	}
	for (size_t i = 0; fits && i < alloc->node_count; i++)
		fits = gpus[i] >= 0;
	for (size_t i = 0; fits && any && !*host && !*vnode && i < alloc->node_count; i++)
		alloc->nodes[i].gpus = gpus[i];
	free(gpus);
}

/* How many chunks a part of select asks for: "2:ncpus=4" for 2, "ncpus=4" for 1. */
static long part_chunks(const char *part)
{
	char *end;
	long count = strtol(part, &end, 10);

	return end == part || (*end && !strchr(":+", *end)) ? 1 : count;
}

/* PBS places chunks in the order of select, so the nodes of a part are consecutive. A node with
 * chunks of two parts belongs to the first one. Unless the numbers of chunks agree, nothing is
 * set. */
static void apply_groups(const struct pbs_job_info *answer, struct alloc *alloc)
{
	const char *host = answer->exec_host, *part = answer->select;
	int *groups = calloc(alloc->node_count, sizeof *groups), count = 0;
	bool fits = groups && host && part;

	for (size_t i = 0; fits && i < alloc->node_count; i++)
		groups[i] = -1;
	for (; fits && *part; count++) {
		for (long left = part_chunks(part); fits && left > 0; left--) {
			long node = node_of(alloc, host, strcspn(host, "/+"));

			fits = *host;
			if (node >= 0 && groups[node] < 0)
				groups[node] = count;
			host += strcspn(host, "+");
			host += *host == '+';
		}
		part += strcspn(part, "+");
		part += *part == '+';
	}
	for (size_t i = 0; fits && i < alloc->node_count; i++)
		fits = groups[i] >= 0;
	if (fits && !*host) {
		alloc->groups = count;
		for (size_t i = 0; i < alloc->node_count; i++)
			alloc->nodes[i].group = groups[i];
	}
	free(groups);
}

void pbs_job_info_apply(const struct pbs_job_info *answer, struct alloc *alloc)
{
	int runs;

	apply_times(answer, alloc);
	apply_gpus(answer, alloc);
	apply_groups(answer, alloc);
	if (answer->run_count &&
	    !number_int("run_count", answer->run_count, 1, 1 << 20, &runs, NULL))
		alloc->restarts = runs - 1;
}

/* ---- asking ---- */

int pbs_conf(const struct env *env, const char *name, char *out, size_t size)
{
	const char *path = env_get(env, "PBS_CONF_FILE");
	char *text = NULL;
	size_t length = 0, name_size = strlen(name);
	int rc = -1;

	if (file_read(path && *path ? path : "/etc/pbs.conf", CONF_MAX, &text, &length, NULL))
		return -1;
	for (char *next = text; rc && next;) {
		char *line = strsep(&next, "\n");

		line += strspn(line, " \t");
		if (strncmp(line, name, name_size) || line[name_size] != '=')
			continue;
		line += name_size + 1;
		line[strcspn(line, " \t\r")] = '\0';
		if (*line == '/' && strlen(line) < size)
			rc = snprintf(out, size, "%s", line) < 0;
	}
	free(text);
	return rc;
}

int pbs_node_file(const struct env *env, char *path, size_t size)
{
	const char *id = env_get(env, "PBS_JOBID");
	char home[512];

	if (!id || pbs_conf(env, "PBS_HOME", home, sizeof home))
		return -1;
	snprintf(path, size, "%s/aux/%s", home, id);
	return access(path, R_OK);
}

int pbs_find_tool(const struct env *env, const char *name, char *path, size_t size)
{
	char dir[512];

	if (env_find_tool(env, name, path, size))
		return 0;
	if (pbs_conf(env, "PBS_EXEC", dir, sizeof dir))
		return -1;
	snprintf(path, size, "%s/bin/%s", dir, name);
	return access(path, X_OK) ? -1 : 0;
}

/* Torque gives the walltime in a variable but not the start; its MoM writes the node file when it
 * starts the job. */
static void apply_torque(const struct env *env, struct alloc *alloc, const char *without)
{
	const char *walltime = env_get(env, "PBS_WALLTIME"), *file = env_get(env, "PBS_NODEFILE");
	struct stat info;
	int64_t seconds;

	if (alloc->end_given)
		return;
	if (walltime && *walltime && file && !stat(file, &info) &&
	    !pbs_duration("PBS_WALLTIME", walltime, &seconds, NULL)) {
		alloc->end_time = (int64_t)info.st_mtime + seconds;
		alloc_set_end_reason(
			alloc,
			"%s; assuming PBS_WALLTIME (%s) after the time when the node file "
			"was written",
			without, walltime);
	} else if (!alloc->end_time) {
		alloc_set_end_reason(alloc, "%s", without);
	}
}

static bool find_qstat(struct alloc_query *query)
{
	if (!query->path[0] &&
	    pbs_find_tool(query->env, "qstat", query->path, sizeof query->path)) {
		query->path[0] = '\0';
		snprintf(query->why, sizeof query->why, "found no qstat in PATH or in PBS_EXEC");
		apply_torque(query->env, query->alloc, query->why);
	}
	return query->path[0];
}

static bool ask_json(struct alloc_query *query, char **argv)
{
	char *const words[] = {query->path, (char *)"-f", (char *)"-F", (char *)"json",
			       query->alloc->job_id};

	/* Torque needs no answer for this. */
	if (!query->answered)
		apply_torque(query->env, query->alloc, "qstat has not answered yet");
	memcpy(argv, words, sizeof words);
	return find_qstat(query);
}

/* Torque lacks -F, and old versions write invalid JSON. */
static bool ask_plain(struct alloc_query *query, char **argv)
{
	char *const words[] = {query->path, (char *)"-f", query->alloc->job_id};

	memcpy(argv, words, sizeof words);
	return query->path[0] && !query->job;
}

/* Variables may hold any bytes, which qstat does not convert to UTF-8. jansson makes a string of
 * UTF-8 only. */
static void replace_bytes(char *text)
{
	json_t *valid = json_string(text);

	if (!valid)
		for (char *at = text; *at; at++)
			if (*at & 0x80)
				*at = '?';
	json_decref(valid);
}

/* Why qstat failed, first with JSON, then without. */
static void add_reason(struct alloc_query *query, const char *text)
{
	text_append(query->why, sizeof query->why, "%s%.140s",
		    *query->why ? "; without -F json: " : "qstat failed: ", text);
}

static void take_job(struct alloc_query *query, enum scheduler_tool_result result,
		     struct scheduler_tool_output *output)
{
	struct pbs_job_info info = {0};
	struct error err = {0};
	int rc = 1;

	if (result == SCHEDULER_TOOL_EXITED)
		replace_bytes(output->text);
	if (result == SCHEDULER_TOOL_TIMEOUT)
		snprintf(query->why, sizeof query->why, "qstat did not answer within %d ms",
			 query->timeout_ms);
	else if (result == SCHEDULER_TOOL_UNAVAILABLE)
		snprintf(query->why, sizeof query->why, "cannot start qstat");
	else if ((rc = pbs_job_info_read(output->text, query->alloc->job_id, &info, &err)))
		add_reason(query, output->stderr_text[0] ? output->stderr_text : err.text);
	if (rc) {
		if (!query->answered)
			apply_torque(query->env, query->alloc, query->why);
		return;
	}
	pbs_job_info_apply(&info, query->alloc);
	query->answered = true;
	snprintf(query->queue, sizeof query->queue, "%s", info.queue ? info.queue : "");
	pbs_job_info_free(&info);
	query->job = output->text;
	output->text = NULL;
}

static bool ask_queue(struct alloc_query *query, char **argv)
{
	char *const words[] = {query->path, (char *)"-Q", (char *)"-f", query->queue};

	memcpy(argv, words, sizeof words);
	return query->also & ALLOC_QUERY_KILL_WAIT && query->queue[0] && query->queue[0] != '-';
}

/* "    kill_delay = 30"; the line is missing if it is PBS's default. */
static void take_queue(struct alloc_query *query, enum scheduler_tool_result result,
		       struct scheduler_tool_output *output)
{
	static const char name[] = " kill_delay = ";
	const char *at = result == SCHEDULER_TOOL_EXITED ? strstr(output->text, name) : NULL;
	int seconds = at ? atoi(at + sizeof name - 1) : 0;

	if (seconds > 0 && seconds <= KILL_DELAY_MAX_S)
		query->kill_wait_ms = seconds * 1000;
}

const struct alloc_query_step alloc_query_pbs[] = {{ask_json, take_job, ANSWER_MAX},
						   {ask_plain, take_job, ANSWER_MAX},
						   {ask_queue, take_queue, ANSWER_MAX},
						   {0}};

json_t *pbs_attributes(char *text, const char *job_id, char *why, size_t size)
{
	struct error err = {0};
	json_t *root = NULL, *job;

	replace_bytes(text);
	if (json_read("qstat's output", text, strlen(text), ANSWER_MAX, &root, &err)) {
		snprintf(why, size, "%s", err.text);
		return NULL;
	}
	job = json_incref(json_object_get(json_object_get(root, "Jobs"), job_id));
	if (!job)
		snprintf(why, size, "qstat does not know the job %s", job_id);
	json_decref(root);
	return job;
}
