/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank's lines collect in its buffer, then in a queue whose thread writes them. write_out alone
 * runs in that thread: of a rank's log it changes only lost and lost_errno. */
#include "process/logs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "base/write_queue.h"

#define BUFFER_BYTES (64 << 10)
#define FREE_MS 1000 /* an agent that waits longer seems lost */
_Static_assert(BUFFER_BYTES == 65536 && FREE_MS == 1000, "logs.h says 64 KiB and 1 s");

/* ---- lines ---- */

bool logs_is_status(const char *text, size_t size)
{
	size_t mark = sizeof LOGS_STATUS_MARK - 1;

	return size >= mark && !memcmp(text, LOGS_STATUS_MARK, mark);
}

static void pass_on(struct bytes *pending, bool newline, logs_line_fn *line, void *context)
{
	line(context, pending->size ? (const char *)pending->data : "", pending->size, newline);
	pending->size = 0;
}

/* Keep bytes of an incomplete line; pass on full pieces. */
static void keep(struct bytes *pending, const char *data, size_t size, logs_line_fn *line,
		 void *context)
{
	while (size) {
		size_t room = LOGS_LINE_MAX - pending->size, part = size < room ? size : room;

		/* Without memory the line arrives in pieces, but nothing of it is lost. */
		if (bytes_add(pending, data, part)) {
			if (pending->size)
				pass_on(pending, false, line, context);
			line(context, data, size, false);
			return;
		}
		data += part;
		size -= part;
		if (pending->size == LOGS_LINE_MAX)
			pass_on(pending, false, line, context);
	}
}

void logs_split(struct bytes *pending, const char *data, size_t size, logs_line_fn *line,
		void *context)
{
	while (size) {
		const char *end = memchr(data, '\n', size);
		size_t length = end ? (size_t)(end - data) : size;

		/* The usual case needs no copy: the whole line is in data. */
		if (end && !pending->size && length <= LOGS_LINE_MAX) {
			line(context, data, length, true);
		} else {
			keep(pending, data, length, line, context);
			if (end)
				pass_on(pending, true, line, context);
		}
		if (!end)
			return;
		size -= length + 1;
		data = end + 1;
	}
}

void logs_split_end(struct bytes *pending, logs_line_fn *line, void *context)
{
	if (pending->size)
		pass_on(pending, false, line, context);
	bytes_free(pending);
}

/* ---- files and last lines ---- */

struct tail_line {
	size_t size;
	bool cut;
	char text[LOGS_TAIL_LINE_BYTES + 4];
};

struct rank_log {
	int rank;
	int fd; /* -1: no file */
	char *buffer;
	size_t buffered;
	uint64_t dropped;	/* bytes dropped since bytes were last queued */
	uint64_t lost;		/* the queue's: bytes not written since the last byte written */
	int lost_errno;		/* the queue's */
	int open_stream;	/* the stream whose line is unfinished, 0: none */
	size_t tail_count;	/* complete or open lines ever kept */
	struct tail_line *tail; /* [tail_lines] of logs->lines; line i is at i % tail_lines */
};

struct logs {
	char *dir;
	size_t count, tail_lines;
	struct rank_log *ranks;
	struct tail_line *lines;   /* of all ranks */
	const char **tail;	   /* what logs_tail returns */
	struct write_queue *queue; /* NULL: no files */
	bool stalled;
	uint64_t dropped;     /* bytes, of all ranks */
	pthread_mutex_t lock; /* for problem, which the queue's thread sets */
	char problem[512];
	bool problem_reported;
	char end[256]; /* what logs_settled returns */
};

static void file_name(char *out, size_t size, const char *dir, int rank)
{
	snprintf(out, size, "%s/rank-%04d.log", dir, rank);
}

/* Note missing bytes at their place as soon as writing works again. */
static bool write_gap_marker(struct rank_log *log)
{
	char marker[160];
	int size = snprintf(marker, sizeof marker,
			    "\n==== berth: %llu bytes are missing here: %s ====\n",
			    (unsigned long long)log->lost, strerror(log->lost_errno));

	if (file_write_all(log->fd, marker, (size_t)size))
		return false;
	log->lost = 0;
	return true;
}

static void set_problem(struct logs *logs, const struct rank_log *log, const char *why)
{
	char path[PATH_MAX];

	file_name(path, sizeof path, logs->dir, log->rank);
	pthread_mutex_lock(&logs->lock);
	if (!logs->problem[0])
		snprintf(logs->problem, sizeof logs->problem,
			 "cannot write %.300s: %s; the job continues, but the log will lack lines",
			 path, why);
	pthread_mutex_unlock(&logs->lock);
}

/* In the queue's thread. */
static void write_out(void *context, unsigned target, const void *data, size_t size)
{
	struct logs *logs = context;
	struct rank_log *log = &logs->ranks[target];

	if ((!log->lost || write_gap_marker(log)) && !file_write_all(log->fd, data, size))
		return;
	log->lost_errno = errno;
	log->lost += size;
	set_problem(logs, log, strerror(log->lost_errno));
}

/* Queue a piece. While writing stalls, queue only what fits. */
static void queue_piece(struct logs *logs, struct rank_log *log, const char *data, size_t size)
{
	char marker[160];
	struct iovec parts[] = {{marker, 0}, {(void *)data, size}};

	if (!size)
		return;
	if (logs->stalled && write_queue_size(logs->queue) > LOGS_QUEUE_BYTES) {
		log->dropped += size;
		logs->dropped += size;
		return;
	}
	if (log->dropped)
		parts[0].iov_len = (size_t)snprintf(
			marker, sizeof marker,
			"\n==== berth: %llu bytes are missing here: writing stalled ====\n",
			(unsigned long long)log->dropped);
	if (write_queue_add(logs->queue, (unsigned)(log - logs->ranks), parts, 2))
		log->dropped = 0;
	else
		log->dropped += size;
}

static void flush_rank(struct logs *logs, struct rank_log *log)
{
	queue_piece(logs, log, log->buffer, log->buffered);
	log->buffered = 0;
}

static void buffer_add(struct logs *logs, struct rank_log *log, const char *data, size_t size)
{
	if (log->buffered + size > BUFFER_BYTES)
		flush_rank(logs, log);
	if (size > BUFFER_BYTES) {
		queue_piece(logs, log, data, size);
		return;
	}
	memcpy(log->buffer + log->buffered, data, size);
	log->buffered += size;
}

static void tail_append(struct tail_line *tail_line, const char *text, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		unsigned char byte = (unsigned char)text[i];

		if (byte == '\r') {
			/* A "\r" at the end belongs to the newline and erases nothing. */
			if (i + 1 < size) {
				tail_line->size = 0;
				tail_line->cut = false;
			}
			continue;
		}
		if (tail_line->size == LOGS_TAIL_LINE_BYTES) {
			tail_line->cut = true;
			continue;
		}
		if ((byte < 0x20 && byte != '\t') || byte == 0x7f)
			byte = '?';
		tail_line->text[tail_line->size++] = (char)byte;
	}
	memcpy(tail_line->text + tail_line->size, "...", 4);
	if (!tail_line->cut)
		tail_line->text[tail_line->size] = '\0';
}

static bool is_blank(const struct tail_line *tail_line)
{
	return strspn(tail_line->text, " \t") == tail_line->size;
}

/* Start a new line after the newest, or in its place if that one is blank. */
static struct tail_line *tail_begin(struct logs *logs, struct rank_log *log)
{
	struct tail_line *newest = NULL;

	if (log->tail_count)
		newest = &log->tail[(log->tail_count - 1) % logs->tail_lines];
	if (!newest || !is_blank(newest))
		newest = &log->tail[log->tail_count++ % logs->tail_lines];
	newest->size = 0;
	newest->cut = false;
	return newest;
}

void logs_line(struct logs *logs, size_t local_rank, int stream, const char *text, size_t size,
	       bool newline)
{
	struct rank_log *log = &logs->ranks[local_rank];
	struct tail_line *tail_line;

	if (newline && !log->open_stream && logs_is_status(text, size))
		return;
	if (log->open_stream && log->open_stream != stream && log->fd >= 0)
		buffer_add(logs, log, "\n", 1);
	if (log->open_stream == stream)
		tail_line = &log->tail[(log->tail_count - 1) % logs->tail_lines];
	else
		tail_line = tail_begin(logs, log);
	tail_append(tail_line, text, size);
	log->open_stream = newline ? 0 : stream;
	if (log->fd < 0)
		return;
	buffer_add(logs, log, text, size);
	if (newline)
		buffer_add(logs, log, "\n", 1);
}

void logs_flush(struct logs *logs)
{
	for (size_t i = 0; i < logs->count; i++)
		if (logs->ranks[i].fd >= 0)
			flush_rank(logs, &logs->ranks[i]);
}

bool logs_full(struct logs *logs)
{
	bool over = logs->queue && write_queue_over(logs->queue, LOGS_QUEUE_BYTES);

	if (!over)
		logs->stalled = false;
	else if (!logs->stalled && write_queue_stalled_ms(logs->queue) >= LOGS_STALL_MS) {
		logs->stalled = true;
		set_problem(logs, &logs->ranks[0], "writing takes longer than 10 s");
	}
	return over && !logs->stalled;
}

int logs_fd(const struct logs *logs)
{
	return logs->queue ? write_queue_fd(logs->queue) : -1;
}

bool logs_settled(struct logs *logs, int64_t waited_ms, const char **lost)
{
	size_t size = logs->queue ? write_queue_size(logs->queue) : 0;
	uint64_t dropped = logs->dropped;

	*lost = NULL;
	if (!size || !write_queue_over(logs->queue, 0)) /* written meanwhile */
		return true;
	if (waited_ms < LOGS_END_MS)
		return false;
	snprintf(logs->end, sizeof logs->end,
		 "the log files in %.100s accept no more output: their last %llu bytes are missing",
		 logs->dir, (unsigned long long)size + dropped);
	logs->stalled = true;
	*lost = logs->end;
	return true;
}

const char *logs_problem(struct logs *logs)
{
	const char *problem = NULL;

	pthread_mutex_lock(&logs->lock);
	if (logs->problem[0] && !logs->problem_reported)
		problem = logs->problem;
	logs->problem_reported = problem || logs->problem_reported;
	pthread_mutex_unlock(&logs->lock);
	return problem;
}

size_t logs_tail(struct logs *logs, size_t local_rank, const char *const **lines)
{
	const struct rank_log *log = &logs->ranks[local_rank];
	size_t first = log->tail_count > logs->tail_lines ? log->tail_count - logs->tail_lines : 0;
	size_t count = 0;

	for (size_t i = first; i < log->tail_count; i++) {
		struct tail_line *tail_line = &log->tail[i % logs->tail_lines];

		if (is_blank(tail_line))
			continue;
		/* Those of more than one byte; tail_append has replaced the others. */
		text_replace_controls(tail_line->text, '?', "\t");
		logs->tail[count++] = tail_line->text;
	}
	*lines = logs->tail;
	return count;
}

static int open_file(const char *dir, int rank, struct rank_log *log, struct error *err)
{
	char path[PATH_MAX]; /* logs_check_dir has checked dir's length */
	struct error why;

	file_name(path, sizeof path, dir, rank);
	log->fd = file_open_append(path, &why);
	if (log->fd < 0 && (errno == EMFILE || errno == ENFILE))
		return error_set(err, ERR_UNAVAILABLE,
				 "%s; raise the open file limit (ulimit -n) or run without "
				 "--log-dir",
				 why.text);
	if (log->fd < 0)
		return error_set(err, ERR_OUTPUT, "a rank's log: %s; choose another --log-dir",
				 why.text);
	log->buffer = malloc(BUFFER_BYTES);
	return log->buffer ? 0 : error_memory(err, "a log");
}

static void write_header(struct logs *logs, struct rank_log *log,
			 const struct logs_options *options)
{
	char text[512], when[32] = "";
	time_t now = time(NULL);
	struct tm utc;

	if (gmtime_r(&now, &utc))
		strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);

	int size = snprintf(text, sizeof text,
			    "==== berth: job %.64s attempt %d rank %d host %.255s %s ====\n",
			    options->job_id ? options->job_id : "-", options->attempt, log->rank,
			    options->host ? options->host : "-", when);

	buffer_add(logs, log, text, (size_t)size);
	flush_rank(logs, log);
}

static int open_files(struct logs *logs, const struct logs_options *options, struct error *err)
{
	int rc = logs_check_dir(options->dir, err);

	if (rc)
		return rc;
	logs->dir = strdup(options->dir);
	if (!logs->dir)
		return error_memory(err, "the logs");
	rc = write_queue_new(write_out, logs, &logs->queue, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < logs->count; i++) {
		rc = open_file(options->dir, logs->ranks[i].rank, &logs->ranks[i], err);
		if (rc)
			return rc;
	}
	for (size_t i = 0; i < logs->count; i++)
		write_header(logs, &logs->ranks[i], options);
	return 0;
}

int logs_open(const struct logs_options *options, struct logs **out, struct error *err)
{
	struct logs *logs = calloc(1, sizeof *logs);
	size_t room = options->rank_count ? options->rank_count : 1;
	int rc = 0;

	if (!logs)
		return error_memory(err, "the logs");
	pthread_mutex_init(&logs->lock, NULL);
	logs->tail_lines = options->tail_lines > 0 ? (size_t)options->tail_lines : LOGS_TAIL_LINES;
	logs->ranks = calloc(room, sizeof *logs->ranks);
	logs->lines = calloc(room, logs->tail_lines * sizeof *logs->lines);
	logs->tail = calloc(logs->tail_lines, sizeof *logs->tail);
	if (!logs->ranks || !logs->lines || !logs->tail) {
		logs_free(logs);
		return error_memory(err, "the logs");
	}
	logs->count = options->rank_count;
	for (size_t i = 0; i < logs->count; i++)
		logs->ranks[i] = (struct rank_log){.rank = options->ranks[i],
						   .fd = -1,
						   .tail = logs->lines + i * logs->tail_lines};
	if (options->dir)
		rc = open_files(logs, options, err);
	if (rc) {
		logs_free(logs);
		return rc;
	}
	log_info(LOG_PROCESS, "log files of %zu ranks: %s", logs->count,
		 options->dir ? options->dir : "none");
	*out = logs;
	return 0;
}

int logs_check_dir(const char *dir, struct error *err)
{
	char path[PATH_MAX];

	if (!dir[0])
		return error_set(err, ERR_OUTPUT, "--log-dir: the directory name is empty");

	int rc = file_make_dirs(dir, err);

	if (rc)
		return error_prefix(err, "--log-dir");
	if (strlen(dir) > PATH_MAX - 32)
		return error_set(err, ERR_OUTPUT,
				 "--log-dir: the directory name is too long: '%.100s...'", dir);
	snprintf(path, sizeof path, "%s/.berth-XXXXXX", dir);

	int fd = mkostemp(path, O_CLOEXEC);

	if (fd < 0)
		return error_set(
			err, ERR_OUTPUT,
			"cannot create a file in log directory %s: %m; choose another --log-dir",
			dir);
	unlink(path);
	close(fd);
	return 0;
}

size_t logs_stale_ranks(const char *dir, int rank_count, int *lowest)
{
	DIR *list = opendir(dir);
	struct dirent *entry;
	size_t count = 0;

	while (list && (entry = readdir(list))) {
		int rank, size = 0;

		/* Nine digits at most: more would overflow the int. */
		if (sscanf(entry->d_name, "rank-%9d.log%n", &rank, &size) != 1 || !size ||
		    entry->d_name[size] || rank < rank_count)
			continue;
		if (!count++ || rank < *lowest)
			*lowest = rank;
	}
	if (list)
		closedir(list);
	return count;
}

void logs_free(struct logs *logs)
{
	if (!logs)
		return;
	for (size_t i = 0; i < logs->count && logs->queue; i++)
		if (logs->ranks[i].buffer)
			flush_rank(logs, &logs->ranks[i]);
	if (!write_queue_free(logs->queue, logs->stalled ? 0 : FREE_MS))
		return; /* the thread still uses it */
	for (size_t i = 0; i < logs->count; i++) {
		if (logs->ranks[i].fd >= 0)
			close(logs->ranks[i].fd);
		free(logs->ranks[i].buffer);
	}
	free(logs->ranks);
	free(logs->lines);
	free(logs->tail);
	free(logs->dir);
	pthread_mutex_destroy(&logs->lock);
	free(logs);
}

void logs_attempt_dir(const char *log_dir, int max_restarts, int attempt, char *out, size_t size)
{
	if (max_restarts)
		snprintf(out, size, "%s/attempt-%d", log_dir, attempt);
	else
		snprintf(out, size, "%s", log_dir);
}
