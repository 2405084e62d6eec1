// pgjdbc: the cases, printed. Arguments: HOST PORT DATABASE SSLMODE CA-FILE.

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.sql.*;
import java.util.*;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.copy.CopyIn;
import org.postgresql.copy.CopyManager;
import org.postgresql.largeobject.LargeObject;
import org.postgresql.largeobject.LargeObjectManager;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

public class Driver {
    static String url;
    static final Properties BASE = new Properties();

    interface Case { void run(Connection c) throws Exception; }

    static Connection connect(String... more) throws SQLException {
        Properties p = new Properties();
        p.putAll(BASE);
        for (int i = 0; i < more.length; i += 2) p.setProperty(more[i], more[i + 1]);
        return DriverManager.getConnection(url, p);
    }

    static String fields(ServerErrorMessage m) {
        return m == null ? "no fields" : String.join("|", String.valueOf(m.getSeverity()), m.getSQLState(), m.getMessage(),
            String.valueOf(m.getDetail()), String.valueOf(m.getHint()), "" + m.getPosition(), "" + m.getInternalPosition(),
            String.valueOf(m.getWhere()), String.valueOf(m.getSchema()), String.valueOf(m.getTable()),
            String.valueOf(m.getColumn()), String.valueOf(m.getDatatype()), String.valueOf(m.getConstraint()),
            m.getFile() + ":" + m.getLine(), String.valueOf(m.getRoutine()));
    }

    static String explain(SQLException e) {
        return e.getSQLState() + " " + (e instanceof PSQLException p ? fields(p.getServerErrorMessage()) : e.getMessage());
    }

    static void theCase(String name, Case run, String... more) throws Exception {
        System.out.println("== " + name);
        try (Connection c = connect(more)) {
            try {
                run.run(c);
            } catch (SQLException e) {
                System.out.println("error " + explain(e));
            }
        }
    }

    static void print(ResultSet r) throws SQLException {
        int columns = r.getMetaData().getColumnCount();
        while (r.next()) {
            StringJoiner line = new StringJoiner(" | ");
            for (int i = 1; i <= columns; i++) line.add(text(r, i));
            System.out.println(line);
        }
    }

    static String text(ResultSet r, int i) throws SQLException {
        if (Types.BINARY == r.getMetaData().getColumnType(i)) {
            byte[] bytes = r.getBytes(i);
            return bytes == null ? "null" : HexFormat.of().formatHex(bytes);
        }
        return String.valueOf(r.getString(i));
    }

    static void query(Connection c, String text, Object... values) throws SQLException {
        try (PreparedStatement s = c.prepareStatement(text)) {
            for (int i = 0; i < values.length; i++) s.setObject(i + 1, values[i]);
            if (s.execute()) print(s.getResultSet()); else System.out.println("count " + s.getUpdateCount());
            for (SQLWarning w = s.getWarnings(); w != null; w = w.getNextWarning()) {
                System.out.println("warning " + fields(((org.postgresql.util.PSQLWarning) w).getServerErrorMessage()));
            }
        }
    }

    static void failing(Connection c, String text, Object... values) {
        try {
            query(c, text, values);
        } catch (SQLException e) {
            System.out.println("error " + explain(e));
        }
    }

    static void types(Connection c) throws SQLException {
        try (PreparedStatement s = c.prepareStatement("SELECT * FROM kinds")) {
            for (int turn = 0; turn < 8; turn++) { // beyond prepareThreshold: named, then binary
                ResultSet r = s.executeQuery();
                if (turn == 0 || turn == 7) print(r); else while (r.next()) { r.getObject(1); }
            }
            ResultSetMetaData m = s.getMetaData();
            for (int i = 1; i <= m.getColumnCount(); i++) {
                System.out.println(m.getColumnName(i) + " " + m.getColumnTypeName(i) + " " + m.getPrecision(i) + " " + m.isNullable(i) + " " + m.getTableName(i));
            }
        }
    }

    static void prepared(Connection c) throws SQLException {
        try (PreparedStatement s = c.prepareStatement("SELECT ? * 2, ?::text")) {
            for (int n = 0; n < 12; n++) {
                s.setInt(1, n);
                s.setString(2, "w");
                print(s.executeQuery());
            }
        }
    }

    static void transactions(Connection c) throws SQLException {
        c.setAutoCommit(false);
        query(c, "INSERT INTO item VALUES (?, 'one', 1.5, NULL)", 501);
        Savepoint a = c.setSavepoint("a");
        failing(c, "INSERT INTO item VALUES (?, 'again', 1.5, NULL)", 501);
        failing(c, "SELECT 1");
        c.rollback(a);
        query(c, "INSERT INTO item VALUES (502, 'two', 1.5, NULL)");
        c.commit();
        query(c, "INSERT INTO item VALUES (503, 'three', 1.5, NULL)");
        c.rollback();
        c.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
        c.setReadOnly(true);
        failing(c, "INSERT INTO item VALUES (504, 'four', 1.5, NULL)");
        c.rollback();
        c.setReadOnly(false);
        query(c, "SELECT id, name FROM item WHERE id > 500 ORDER BY id");
        c.commit();
    }

    static void batch(Connection c) throws SQLException {
        try (PreparedStatement s = c.prepareStatement("INSERT INTO stream (client, seq, word, at, data) VALUES (?, ?, ?, ?, ?)")) {
            for (int n = 0; n < 300; n++) {
                s.setInt(1, 1);
                s.setInt(2, n);
                s.setString(3, n % 2 == 0 ? null : "w" + n);
                s.setTimestamp(4, new Timestamp(1000L * n));
                s.setBytes(5, new byte[] {(byte) n});
                s.addBatch();
            }
            System.out.println(Arrays.toString(s.executeBatch()));
        }
        query(c, "SELECT * FROM stream WHERE client = 1 ORDER BY seq LIMIT 20");
        query(c, "SELECT count(*), sum(seq), count(word) FROM stream WHERE client = 1");
        try (PreparedStatement s = c.prepareStatement("INSERT INTO item VALUES (?, ?, 1, NULL)")) {
            for (int id : new int[] {550, 551, 550, 552}) {
                s.setInt(1, id);
                s.setString(2, "x");
                s.addBatch();
            }
            System.out.println(Arrays.toString(s.executeBatch()));
        } catch (BatchUpdateException e) {
            System.out.println(Arrays.toString(e.getUpdateCounts()) + " " + explain((SQLException) e.getCause()));
        }
        query(c, "SELECT id FROM item WHERE id BETWEEN 550 AND 559 ORDER BY id");
        try (PreparedStatement s = c.prepareStatement("INSERT INTO item VALUES (?, 'k', 1, NULL)", new String[] {"id"})) {
            for (int id = 560; id < 563; id++) { s.setInt(1, id); s.addBatch(); }
            s.executeBatch();
            print(s.getGeneratedKeys());
        }
        try (Statement s = c.createStatement()) {
            for (int n = 0; n < 5; n++) s.addBatch("INSERT INTO stream (client, seq) VALUES (2, " + n + ")");
            System.out.println(Arrays.toString(s.executeBatch()));
        }
    }

    static void copy(Connection c) throws Exception {
        CopyManager m = c.unwrap(PGConnection.class).getCopyAPI();
        StringBuilder text = new StringBuilder();
        for (int n = 0; n < 1000; n++) text.append("7\t").append(n).append("\tw\\t").append(n).append('\n');
        System.out.println(m.copyIn("COPY stream (client, seq, word) FROM STDIN", new ByteArrayInputStream(text.toString().getBytes(StandardCharsets.UTF_8))));
        try {
            m.copyIn("COPY stream (client, seq) FROM STDIN", new ByteArrayInputStream("1\t2\nx\t3\n".getBytes(StandardCharsets.UTF_8)));
        } catch (SQLException e) {
            System.out.println("bad row " + explain(e));
        }
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        System.out.println(m.copyOut("COPY (SELECT client, seq, word FROM stream ORDER BY 1, 2) TO STDOUT", out));
        System.out.println(digest(out.toByteArray()));
    }

    static String digest(byte[] bytes) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("MD5").digest(bytes));
    }

    static void cancelled(Connection c) throws Exception {
        try (Statement s = c.createStatement()) {
            Thread soon = new Thread(() -> {
                try (Connection other = connect(); Statement look = other.createStatement()) {
                    // The query must have begun: an early cancel would be lost.
                    ResultSet r;
                    do {
                        r = look.executeQuery("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'");
                        r.next();
                    } while (r.getInt(1) == 0);
                    s.cancel();
                } catch (Exception e) {
                    System.out.println("cancel failed " + e);
                }
            });
            soon.start();
            try {
                s.execute("SELECT pg_sleep(60)");
            } catch (SQLException e) {
                System.out.println("error " + explain(e));
            }
            soon.join();
        }
        query(c, "SELECT 'alive'");
    }

    static void singles(Connection c) throws SQLException {
        try (PreparedStatement s = c.prepareStatement("INSERT INTO stream (client, seq, word) VALUES (?, ?, ?)")) {
            int count = 0;
            for (int n = 0; n < 50; n++) {
                s.setInt(1, 4);
                s.setInt(2, n);
                s.setString(3, "it's");
                count += s.executeUpdate();
            }
            System.out.println(count);
        }
        query(c, "SELECT count(*), sum(seq), min(word) FROM stream WHERE client = 4");
    }

    static void atOnce(Connection c) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int client = 60; client < 70; client++) {
            int mine = client;
            Thread t = new Thread(() -> {
                try (Connection own = connect()) {
                    for (int n = 0; n < 50; n++) {
                        try (PreparedStatement s = own.prepareStatement("INSERT INTO stream (client, seq) VALUES (?, ?)")) {
                            s.setInt(1, mine);
                            s.setInt(2, n);
                            if (s.executeUpdate() != 1) System.out.println("UNEXPECTED count");
                        }
                    }
                } catch (SQLException e) {
                    System.out.println("UNEXPECTED " + explain(e));
                }
            });
            threads.add(t);
            t.start();
        }
        for (Thread t : threads) t.join();
        query(c, "SELECT client, count(*), sum(seq) FROM stream WHERE client BETWEEN 60 AND 69 GROUP BY 1 ORDER BY 1");
    }

    static void large(Connection c) throws Exception {
        String text = "0123456789abcdef".repeat(400_000);
        try (PreparedStatement s = c.prepareStatement("SELECT ?::text")) {
            s.setString(1, text);
            ResultSet r = s.executeQuery();
            r.next();
            System.out.println(digest(r.getString(1).getBytes(StandardCharsets.UTF_8)));
        }
    }

    static void fetched(Connection c) throws SQLException {
        c.setAutoCommit(false);
        try (Statement s = c.createStatement()) {
            s.setFetchSize(7);
            ResultSet r = s.executeQuery("SELECT * FROM generate_series(1, 40)");
            int sum = 0;
            while (r.next()) sum += r.getInt(1);
            System.out.println(sum);
        }
        c.commit();
    }

    static void settings(Connection c) throws SQLException {
        query(c, "SET TIME ZONE 'Asia/Tokyo'");
        for (int n = 0; n < 5; n++) query(c, "SHOW TimeZone");
        c.setSchema("pg_catalog");
        System.out.println(c.getSchema());
    }

    static void listening(Connection c) throws SQLException {
        query(c, "LISTEN words");
        try (Connection other = connect()) {
            query(other, "NOTIFY words, 'hello'");
        }
        for (PGNotification n : c.unwrap(PGConnection.class).getNotifications(10_000)) {
            System.out.println(n.getName() + " " + n.getParameter());
        }
    }

    static void several(Connection c) throws SQLException {
        try (Statement s = c.createStatement()) {
            boolean rows = s.execute("SELECT 1; SELECT 'two', 2; INSERT INTO stream (client) VALUES (3); SELECT 4");
            while (rows || s.getUpdateCount() != -1) {
                if (rows) print(s.getResultSet()); else System.out.println("count " + s.getUpdateCount());
                rows = s.getMoreResults();
            }
        }
    }

    // The driver's large objects are calls by FunctionCall messages.
    static void largeObjects(Connection c) throws Exception {
        c.setAutoCommit(false);
        LargeObjectManager m = c.unwrap(PGConnection.class).getLargeObjectAPI();
        long oid = m.createLO();
        try (LargeObject o = m.open(oid)) {
            o.write(new byte[3_000_000]);
            o.write("tail".getBytes(StandardCharsets.UTF_8));
            o.seek(2_999_998);
            System.out.println(HexFormat.of().formatHex(o.read(20)) + " " + o.tell() + " " + o.size());
            o.truncate(5);
            System.out.println(o.size());
        }
        c.commit();
        try (LargeObject o = m.open(oid, LargeObjectManager.READ)) {
            o.write(new byte[] {1});
        } catch (SQLException e) {
            System.out.println("error " + explain(e));
        }
        c.rollback();
        m.unlink(oid);
        c.commit();
        try {
            m.unlink(oid);
        } catch (SQLException e) {
            System.out.println(e.getSQLState());
        }
        c.rollback();
    }

    static void changedType(Connection c) throws SQLException {
        query(c, "DROP TABLE IF EXISTS changing");
        query(c, "CREATE TABLE changing AS SELECT 1 AS a");
        try (Connection other = connect("prepareThreshold", "1")) {
            for (String text : new String[] {"ADD COLUMN b bigint DEFAULT 2", "ALTER COLUMN a TYPE text", "DROP COLUMN b"}) {
                try (PreparedStatement s = other.prepareStatement("SELECT * FROM changing")) {
                    for (int n = 0; n < 6; n++) print(s.executeQuery());
                    query(c, "ALTER TABLE changing " + text);
                    // The driver prepares again by itself, outside of a transaction.
                    for (int n = 0; n < 6; n++) print(s.executeQuery());
                }
            }
            other.setAutoCommit(false);
            try (PreparedStatement s = other.prepareStatement("SELECT * FROM changing")) {
                print(s.executeQuery());
                other.commit();
                query(c, "ALTER TABLE changing ADD COLUMN c int");
                print(s.executeQuery());
            } catch (SQLException e) {
                System.out.println(e.getSQLState() + " " + e.getMessage());
            }
            other.rollback();
            query(other, "SELECT * FROM changing");
        }
    }

    static void autosave(Connection c) throws SQLException {
        c.setAutoCommit(false);
        for (int n = 0; n < 3; n++) {
            query(c, "INSERT INTO item VALUES (?, 'saved', 1, NULL)", 580 + n);
            failing(c, "INSERT INTO item VALUES (?, 'saved', -1, NULL)", 590 + n);
        }
        c.commit();
        query(c, "SELECT id FROM item WHERE name = 'saved' ORDER BY id");
    }

    static void timeouts(Connection c) throws SQLException {
        query(c, "SET statement_timeout = 250");
        for (int n = 0; n < 3; n++) failing(c, "SELECT pg_sleep(?)", 60);
        query(c, "SHOW statement_timeout");
        query(c, "RESET statement_timeout");
        try (Statement s = c.createStatement()) {
            s.setQueryTimeout(1);
            s.execute("SELECT pg_sleep(60)");
        } catch (SQLException e) {
            System.out.println("error " + explain(e));
        }
        query(c, "SELECT 'alive'");
    }

    static void refcursor(Connection c) throws SQLException {
        query(c, "CREATE OR REPLACE FUNCTION some() RETURNS refcursor LANGUAGE plpgsql AS $$ DECLARE r refcursor := 'named'; BEGIN OPEN r FOR SELECT generate_series(1, 5); RETURN r; END $$");
        c.setAutoCommit(false);
        try (CallableStatement s = c.prepareCall("{? = call some()}")) {
            s.registerOutParameter(1, Types.REF_CURSOR);
            s.execute();
            print((ResultSet) s.getObject(1));
        }
        c.commit();
    }

    static void described(Connection c) throws SQLException {
        DatabaseMetaData m = c.getMetaData();
        try (ResultSet r = m.getColumns(null, "public", "item", null)) {
            while (r.next()) System.out.println(r.getString("COLUMN_NAME") + " " + r.getString("TYPE_NAME") + " " + r.getInt("NULLABLE"));
        }
        try (ResultSet r = m.getPrimaryKeys(null, "public", "item")) {
            while (r.next()) System.out.println(r.getString("COLUMN_NAME") + " " + r.getString("PK_NAME"));
        }
        try (PreparedStatement s = c.prepareStatement("SELECT * FROM item WHERE id = ? AND name = ?")) {
            ParameterMetaData p = s.getParameterMetaData();
            System.out.println(p.getParameterTypeName(1) + " " + p.getParameterTypeName(2) + " " + s.getMetaData().getColumnCount());
        }
        try (Statement s = c.createStatement(ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_UPDATABLE)) {
            s.executeUpdate("INSERT INTO item VALUES (595, 'before', 1, NULL)");
            ResultSet r = s.executeQuery("SELECT id, name FROM item WHERE id = 595");
            r.next();
            r.updateString("name", "after");
            r.updateRow();
        }
        query(c, "SELECT name FROM item WHERE id = 595");
    }

    static void isolation(Connection c) throws SQLException {
        for (int level : new int[] {1, 2, 4, 8}) {
            c.setTransactionIsolation(level);
            System.out.println(c.getTransactionIsolation());
            query(c, "SHOW transaction_isolation");
        }
        c.setReadOnly(true);
        for (int n = 0; n < 4; n++) failing(c, "INSERT INTO stream (client) VALUES (?)", n);
        c.setReadOnly(false);
        query(c, "INSERT INTO stream (client) VALUES (?)", 92);
    }

    static void copyCancelled(Connection c) throws SQLException {
        CopyManager m = c.unwrap(PGConnection.class).getCopyAPI();
        CopyIn in = m.copyIn("COPY stream (client, seq) FROM STDIN");
        byte[] row = "93\t1\n".getBytes(StandardCharsets.UTF_8);
        for (int n = 0; n < 1000; n++) in.writeToCopy(row, 0, row.length);
        in.cancelCopy();
        query(c, "SELECT count(*) FROM stream WHERE client = 93");
    }

    public static void main(String[] a) throws Exception {
        System.setOut(new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8));
        url = "jdbc:postgresql://" + a[0] + ":" + a[1] + "/" + a[2];
        BASE.setProperty("user", "app");
        BASE.setProperty("password", "secret");
        BASE.setProperty("ApplicationName", "drivers");
        BASE.setProperty("connectTimeout", "20");
        BASE.setProperty("gssEncMode", "disable");
        BASE.setProperty("sslmode", a[3]);
        if (!a[3].equals("disable")) BASE.setProperty("sslrootcert", a[4]);
        TimeZone.setDefault(TimeZone.getTimeZone("UTC"));
        theCase("parameters", c -> System.out.println(new TreeMap<>(c.unwrap(PGConnection.class).getParameterStatuses())));
        theCase("kinds", Driver::types);
        theCase("kinds, simple protocol", Driver::types, "preferQueryMode", "simple");
        theCase("prepared", Driver::prepared);
        theCase("prepared, forced binary", Driver::prepared, "prepareThreshold", "-1");
        theCase("prepared, extendedCacheEverything", Driver::prepared, "preferQueryMode", "extendedCacheEverything", "prepareThreshold", "1");
        theCase("transactions", Driver::transactions);
        theCase("errors", c -> {
            failing(c, "SELEKT 1");
            failing(c, "SELECT 'ü', nowhere FROM item WHERE id = ?", 1);
            failing(c, "INSERT INTO item VALUES (?, NULL, 1, NULL)", 9);
            failing(c, "INSERT INTO item VALUES (?, 'x', -1, NULL)", 9);
            failing(c, "INSERT INTO item VALUES (9, 'x', 1, ?)", 12345);
            failing(c, "INSERT INTO stream (client) VALUES ('abc')");
            failing(c, "SELECT complain(?)", "noise");
            query(c, "SELECT 'alive'");
        });
        theCase("notices", c -> query(c, "SELECT remark('hm')"));
        theCase("batch", Driver::batch);
        theCase("batch, rewritten", Driver::batch, "reWriteBatchedInserts", "true");
        theCase("copy", Driver::copy);
        theCase("cancelled", Driver::cancelled);
        theCase("singles", Driver::singles);
        theCase("at once", Driver::atOnce);
        theCase("large", Driver::large);
        theCase("fetch size", Driver::fetched);
        theCase("several statements", Driver::several);
        theCase("empty", c -> query(c, ""));
        theCase("settings", Driver::settings);
        theCase("settings are gone", c -> query(c, "SHOW TimeZone"));
        theCase("listen", Driver::listening);
        theCase("large objects", Driver::largeObjects);
        theCase("changed type", Driver::changedType);
        theCase("autosave", Driver::autosave, "autosave", "always");
        theCase("autosave, conservative", Driver::changedType, "autosave", "conservative");
        theCase("timeouts", Driver::timeouts);
        theCase("refcursor", Driver::refcursor);
        theCase("described", Driver::described);
        theCase("isolation", Driver::isolation);
        theCase("copy cancelled", Driver::copyCancelled);
        System.out.println("== end");
    }
}
