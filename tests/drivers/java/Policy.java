// pgjdbc under a strict policy: what is refused and what is not. Arguments: HOST PORT DATABASE.
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;

class Policy {
    static void way(String name, String[] a, boolean autocommit, String options) throws SQLException {
        String url = "jdbc:postgresql://" + a[0] + ":" + a[1] + "/" + a[2] + "?user=postgres&sslmode=disable&gssEncMode=disable" + options;
        try (Connection c = DriverManager.getConnection(url)) {
            c.setAutoCommit(autocommit);
            if (autocommit) execute(c, "BEGIN");
            try (PreparedStatement s = c.prepareStatement("INSERT INTO t VALUES (?)")) {
                s.setInt(1, 1);
                s.executeUpdate();
            }
            try (Statement s = c.createStatement()) {
                s.executeQuery("SELECT count(*) FROM t").close();
            }
            if (autocommit) execute(c, "COMMIT");
            else c.commit();
            System.out.println(name + "\tworks");
        } catch (SQLException e) {
            if (!"42501".equals(e.getSQLState())) throw e;
            System.out.println(name + "\trefused");
        }
    }

    static void execute(Connection c, String statement) throws SQLException {
        try (Statement s = c.createStatement()) {
            s.execute(statement);
        }
    }

    public static void main(String[] a) throws SQLException {
        way("as it is, also with `setAutoCommit(false)`", a, false, "");
        way("autocommit, BEGIN as a statement", a, true, "");
        way("the same with `assumeMinServerVersion=9.4`", a, true, "&assumeMinServerVersion=9.4");
        way("`preferQueryMode=extendedForPrepared`", a, false, "&preferQueryMode=extendedForPrepared");
        way("`preferQueryMode=simple`", a, false, "&preferQueryMode=simple");
    }
}
