/*
 * One dialog between two ends over a network that loses, doubles and reorders, with ends that crash.
 *
 * What is durable outlives a crash: it is changed in one atomic step, as the code changes it in one transaction. What is
 * volatile is forgotten. Gateways are the network: they store nothing and acknowledge nothing.
 *
 *   in the model            in the code
 *   ---------------------   ---------------------------------------------------------------------------------------
 *   SO SI CO DI DO CD       broker.conversation.state.ConversationState
 *   ABSENT                  no row in broker_conversation; with `tombstone`, a row in broker_tombstone
 *   sent, acked             broker_conversation.send_sequence, acknowledged_sequence
 *   stored                  broker_conversation.receive_sequence: everything before it is stored
 *   end_at                  broker_conversation.end_dialog_sequence
 *   arrive()                broker.store.sqlite.receive, with broker.conversation.frames.classify
 *   acknowledge()           broker.store.port: cumulative acknowledgement, on its own or with a message
 *   due                     broker.dialog.arrivals: an acknowledgement that is to be sent; volatile
 *   App                     broker.client: SEND, RECEIVE, END CONVERSATION
 *   Transmit                broker.dialog.transmitter: sends and resends what is not acknowledged
 *   Network                 gateways and links: broker.forwarding, broker.net
 *
 * Checked: nothing is lost that was acknowledged, nothing is taken twice or out of order, a dialog is made once at the
 * target, what the initiator sent before it ended is received whole, and both ends close once the faults are over.
 */

#ifndef MESSAGES
#define MESSAGES 2      /* the initiator sends before it ends */
#endif
#ifndef REPLIES
#define REPLIES 1       /* the target sends; the initiator waits for them before it ends */
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef COPIES
#define COPIES 1
#endif
#ifndef CRASHES
#define CRASHES 1
#endif

/* 1: the target may end before it has received everything, so what is under way then is thrown away, as documented. */
#ifndef IS_ENDING_EARLY
#define IS_ENDING_EARLY 0
#endif

/* Faults that the checks must find, for a model that cannot fail proves nothing:
   1 a closed end does not acknowledge; 2 frames are acknowledged before they are stored; 3 places are not compared;
   4 a crash forgets what was stored; 5 no tombstone is kept. */
#ifndef FAULT
#define FAULT 0
#endif

#define ACK (MESSAGES + 1)  /* the place of an acknowledgement alone; others have that of their sequence number */
#define NONE 15
#define far (1 - me)

mtype = { ABSENT, SO, SI, CO, DI, DO, CD };

typedef End {
    /* durable */
    mtype state;
    byte sent;          /* the next sequence number to send */
    byte acked;
    byte stored;
    byte read;          /* how many the application has received */
    byte end_at;        /* the sequence number of our END DIALOG; NONE */
    bit tombstone;
    /* volatile */
    bit due;
};

typedef Frame {
    bit is_there;
    byte acknowledged;  /* what its sender had stored, with every frame */
};

/* What is on its way, in any order: of each frame one, the copies that the network makes beside it. */
typedef Way { Frame place[MESSAGES + 2] };

End ends[2];            /* the initiator, the target */
Way way[2];             /* to the initiator, to the target */
byte made = 0;          /* how often the target has made the dialog */
byte losses = LOSSES, copies = COPIES, crashes = CRASHES;

#define is_closed(n) (ends[n].state == CD)
#define all_closed (is_closed(0) && is_closed(1))

inline put(where) {
    way[far].place[where].is_there = 1;
    way[far].place[where].acknowledged = ends[me].stored + (FAULT == 2)
}

/* R3 of the table of states: the acknowledgement of our END DIALOG closes. */
inline acknowledge(number) {
    assert(number <= ends[far].stored);  /* nobody acknowledges what is not stored */
    if
    :: number > ends[me].acked && ends[me].state != CD && ends[me].state != ABSENT ->
        ends[me].acked = number;
        if
        :: ends[me].state == DO && number > ends[me].end_at ->
            ends[me].state = CD;
            ends[me].tombstone = 1
        :: else
        fi
    :: else
    fi
}

inline arrive(number, end_dialog) {
    if
    :: FAULT == 5 && me == 1 && ends[me].state == CD && number == 0 ->
        ends[me].state = ABSENT;
        ends[me].stored = 0;
        ends[me].tombstone = 0
    :: else
    fi;
    if
    :: ends[me].state == ABSENT ->
        if
        :: me == 1 && number == 0 && !ends[me].tombstone ->
            ends[me].state = SI;
            made++;
            assert(made == 1)
        :: else                          /* not its beginning: dropped until that has come */
        fi
    :: else
    fi;
    if
    :: ends[me].state == ABSENT -> skip
    :: ends[me].state == CD -> ends[me].due = (FAULT != 1)  /* the tombstone acknowledges */
    :: ends[me].state == SO || ends[me].state == SI || ends[me].state == CO ->
        ends[me].due = 1;
        if
        :: number == ends[me].stored || FAULT == 3 ->
            assert(number == ends[me].stored);  /* nothing twice, nothing out of order */
            ends[me].stored++;
            if
            :: end_dialog -> ends[me].state = DI
            :: !end_dialog && ends[me].state != CO -> ends[me].state = CO
            :: else
            fi
        :: else                          /* a duplicate; or early, which this model drops */
        fi
    :: ends[me].state == DI -> ends[me].due = 1
    :: ends[me].state == DO ->           /* takes no messages any more, acknowledges them, and hears of the end */
        ends[me].due = 1;
        if
        :: number == ends[me].stored ->
            ends[me].stored++;
            if
            :: end_dialog -> ends[me].state = CD; ends[me].tombstone = 1
            :: else
            fi
        :: else
        fi
    fi
}

/* A frame arrives, or one of its copies does, or it is lost. */
proctype Network(bit me; byte where) {
    byte acknowledged = 0;
end:
    do
    :: atomic {
        way[me].place[where].is_there ->
        acknowledged = way[me].place[where].acknowledged;
        if
        :: copies > 0 -> copies--
        :: way[me].place[where].is_there = 0; way[me].place[where].acknowledged = 0
        fi;
        acknowledge(acknowledged);
        if
        :: where != ACK -> arrive(where, (where == ends[far].end_at))
        :: else
        fi;
        acknowledged = 0
    }
    :: atomic {
        way[me].place[where].is_there && losses > 0 -> losses--;
        way[me].place[where].is_there = 0;
        way[me].place[where].acknowledged = 0
    }
    od
}

/* A message that is not acknowledged may be sent at any time: timers only say when. */
proctype Transmit(bit me; byte number) {
end:
    do
    :: atomic {
        (number < ends[me].sent && number >= ends[me].acked && ends[me].state != CD) ->
        put(number);
        ends[me].due = 0
    }
    od
}

proctype Acknowledge(bit me) {
end:
    do
    :: atomic { ends[me].due -> put(ACK); ends[me].due = 0 }
    od
}

proctype App(bit me) {
end:
    do
    :: atomic {                          /* SEND, in a transaction of its own */
        me == 0 && (ends[0].state == SO || ends[0].state == CO) && ends[0].sent < MESSAGES ->
        ends[0].sent++;
        ends[0].state = CO
    }
    :: atomic {                          /* the target answers what it has received */
        me == 1 && ends[1].state == CO && ends[1].read > 0 && ends[1].sent < REPLIES -> ends[1].sent++
    }
    :: atomic {                          /* RECEIVE: in their order */
        ends[me].read < ends[me].stored && ends[me].state != CD && ends[me].state != DO -> ends[me].read++
    }
    :: atomic {                          /* END CONVERSATION, once everything is said and heard */
        me == 0 && ends[0].state == CO && ends[0].sent == MESSAGES && ends[0].read == REPLIES ->
        ends[0].end_at = ends[0].sent;
        ends[0].sent++;
        ends[0].state = DO
    }
    :: atomic {                          /* the far side has ended, and all of it has been received */
        ends[me].state == DI && ends[me].read == ends[me].stored ->
        assert(me == 0 || IS_ENDING_EARLY || ends[1].read == MESSAGES + 1);
        ends[me].state = CD;
        ends[me].tombstone = 1;
        ends[me].acked = ends[me].sent   /* nobody is there to hear the rest */
    }
    :: atomic {                          /* the target may end whenever it likes */
        IS_ENDING_EARLY && me == 1 && (ends[1].state == CO || ends[1].state == SI) ->
        ends[1].end_at = ends[1].sent;
        ends[1].sent++;
        ends[1].state = DO
    }
    od
}

/* Whatever is volatile is forgotten; what is on its way stays on its way. */
proctype Crash(bit me) {
end:
    do
    :: atomic {
        crashes > 0 -> crashes--;
        ends[me].due = 0;
        if
        :: FAULT == 4 && ends[me].stored > 0 -> ends[me].stored--
        :: else
        fi
    }
    od
}

init {
    byte n;
    atomic {
        ends[0].state = SO; ends[1].state = ABSENT;
        ends[0].end_at = NONE; ends[1].end_at = NONE;
        for (n : 0 .. MESSAGES) { run Network(1, n); run Transmit(0, n) }
        for (n : 0 .. (REPLIES - 1)) { run Network(0, n); run Transmit(1, n) }
        run Network(1, ACK); run Network(0, ACK);
        run Acknowledge(0); run Acknowledge(1);
        run App(0); run App(1);
        run Crash(0); run Crash(1)
    }
}

ltl both_close { <> all_closed }
ltl replies_are_heard { [] (ends[0].state == DO -> ends[0].read == REPLIES) }
