/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/screen.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/number.h"
#include "process/logs.h"
#include "progress.h"

#define REFRESH_MS 1000
#define LINE_MS 60000

/* A terminal that the user has stopped (Ctrl-S), or a full pipe, must not hold the lock: the
 * training would wait for it. */
static bool is_ready(void)
{
	struct pollfd wait = {.fd = STDERR_FILENO, .events = POLLOUT};

	return poll(&wait, 1, 0) > 0;
}

static void erase(struct screen *screen)
{
	if (screen->dirty)
		fprintf(stderr, PROGRESS_OVER);
	screen->dirty = false;
}

static void write_line(struct screen *screen, const char *start, const char *text)
{
	if (screen->quiet)
		return;
	erase(screen);
	fprintf(stderr, "%s%s\n", start, text);
	screen->written_s = clock_now_s();
	screen->changed = false;
}

static void draw(struct screen *screen, const char *text)
{
	fprintf(stderr, PROGRESS_OVER "%.*s", (int)progress_fit(STDERR_FILENO, strlen(text)), text);
	screen->dirty = true;
}

/* ---- the status ---- */

static void show_status(struct screen *screen)
{
	double now = clock_now_s();
	char line[300];

	progress_elapsed(screen->text, now - screen->begin_s, screen->activity, line, sizeof line);
	if (screen->terminal && is_ready())
		draw(screen, line);
	else if (screen->marked && is_ready())
		fprintf(stderr, LOGS_STATUS_MARK "%s\n", line);
	else if (!screen->terminal && !screen->marked && screen->changed &&
		 now - screen->written_s >= screen->line_s)
		write_line(screen, "", line);
}

static void *refresh(void *context)
{
	struct screen *screen = context;
	int64_t ms =
		screen->line_s * 1e3 < REFRESH_MS ? (int64_t)(screen->line_s * 1e3) : REFRESH_MS;

	pthread_mutex_lock(&screen->lock);
	while (!screen->ends) {
		struct timespec due = clock_after_ms(ms);

		show_status(screen);
		pthread_cond_timedwait(&screen->wake, &screen->lock, &due);
	}
	pthread_mutex_unlock(&screen->lock);
	return NULL;
}

static void on_log(void *context, const char *line, size_t size)
{
	struct screen *screen = context;

	pthread_mutex_lock(&screen->lock);
	erase(screen);
	fwrite(line, 1, size, stderr);
	pthread_mutex_unlock(&screen->lock);
}

void screen_open(struct screen *screen, const struct env *env, bool shows)
{
	const char *quiet = env ? env_get(env, "BERTH_TEST_LINE_MS") : NULL;
	const char *mode = env ? env_get(env, PROGRESS_ENV) : NULL;
	int line_ms = LINE_MS;

	if (quiet && number_int("BERTH_TEST_LINE_MS", quiet, 10, LINE_MS, &line_ms, NULL))
		line_ms = LINE_MS;
	*screen = (struct screen){
		/* A log line would be written over the status. */
		.quiet = mode && !strcmp(mode, PROGRESS_NONE),
		.terminal = isatty(STDERR_FILENO) && !log_is_on(),
		.marked = mode != NULL,
		.line_s = line_ms * 1e-3,
		.begin_s = clock_now_s(),
		.written_s = clock_now_s(),
		.changed = true,
		.activity = "starting",
	};
	pthread_mutex_init(&screen->lock, NULL);
	clock_cond_init(&screen->wake);
	if (screen->terminal)
		log_set_writer(on_log, screen);
	/* Without a thread there is no status. */
	screen->has_thread =
		shows && !screen->quiet && !thread_start(&screen->thread, refresh, screen);
}

void screen_close(struct screen *screen)
{
	pthread_mutex_lock(&screen->lock);
	screen->ends = true;
	pthread_cond_signal(&screen->wake);
	pthread_mutex_unlock(&screen->lock);
	if (screen->has_thread)
		pthread_join(screen->thread, NULL);
	screen->has_thread = false;
	erase(screen);
	log_set_writer(NULL, NULL);
}

/* ---- what the run writes ---- */

void screen_line(struct screen *screen, const char *text)
{
	pthread_mutex_lock(&screen->lock);
	write_line(screen, "", text);
	pthread_mutex_unlock(&screen->lock);
}

void screen_progress(struct screen *screen, const char *text)
{
	pthread_mutex_lock(&screen->lock);
	if (screen->terminal && !screen->quiet)
		draw(screen, text);
	else
		write_line(screen, screen->marked ? PROGRESS_MARK : "", text);
	pthread_mutex_unlock(&screen->lock);
}

void screen_status(struct screen *screen, const char *text, const char *activity)
{
	pthread_mutex_lock(&screen->lock);
	if (text && strcmp(screen->text, text)) {
		snprintf(screen->text, sizeof screen->text, "%s", text);
		screen->changed = true;
	}
	if (!screen->text[0] && strcmp(screen->activity, activity))
		screen->changed = true;
	screen->activity = activity;
	pthread_mutex_unlock(&screen->lock);
}
